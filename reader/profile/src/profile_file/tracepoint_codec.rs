//! Encodes and decodes tracepoints and the fields of their events.

use super::fields::{Fields, Malformed, Put, PutText};
use crate::tracepoint::{EventFields, FieldValue, Tracepoint};

pub(super) const EVENT: u8 = 21;
pub(super) const TRACEPOINT: u8 = 25;

pub(super) fn put_tracepoint(v: &Tracepoint, body: &mut Vec<u8>) -> u8 {
    body.put_u32(v.process);
    body.put_u32(v.id);
    body.put_bytes(v.provider.as_bytes());
    body.put_bytes(v.name.as_bytes());
    body.put_strings(&v.fields);
    TRACEPOINT
}

pub(super) fn tracepoint(f: &mut Fields<'_>) -> Result<Tracepoint, Malformed> {
    Ok(Tracepoint {
        process: f.u32()?,
        id: f.u32()?,
        provider: f.string()?,
        name: f.string()?,
        fields: f.list(Fields::string)?,
    })
}

/// What an event carries, before its sample.
pub(super) fn put_fields(fields: &EventFields, body: &mut Vec<u8>) -> u8 {
    let EventFields { tracepoint, values } = fields;
    body.put_u32(*tracepoint);
    body.put_u64(values.len() as u64);
    for value in values {
        match value {
            FieldValue::I64(value) => {
                body.push(0);
                body.put_i64(*value);
            }
            FieldValue::U64(value) => {
                body.push(1);
                body.put_u64(*value);
            }
            FieldValue::F64(bits) => {
                body.push(2);
                body.put_u64(bits.swap_bytes());
            }
            FieldValue::Text(text) => {
                body.push(3);
                body.put_bytes(text.as_bytes());
            }
            FieldValue::CutText(text) => {
                body.push(4);
                body.put_bytes(text.as_bytes());
            }
            FieldValue::Null => body.push(5),
        }
    }
    EVENT
}

pub(super) fn event_fields(f: &mut Fields<'_>) -> Result<EventFields, Malformed> {
    let tracepoint = f.u32()?;
    let values = f.list(|f| {
        Ok(match f.byte()? {
            0 => FieldValue::I64(f.i64()?),
            1 => FieldValue::U64(f.u64()?),
            // A number with few digits has zeros in its low bytes.
            2 => FieldValue::F64(f.u64()?.swap_bytes()),
            3 => FieldValue::Text(f.string()?),
            4 => FieldValue::CutText(f.string()?),
            5 => FieldValue::Null,
            _ => return Err("the type of a field"),
        })
    })?;
    Ok(EventFields { tracepoint, values })
}
