//! Programs' own tracepoints: their names, and the fields of their events.
//!
//! Events refer to their tracepoint by a number in their process. Tracepoints of the same name, in any process or place of a program,
//! are shown as one.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

use serde::{Serialize, Serializer};

/// Source number of tracepoint events in samples.
pub const TRACEPOINT: u8 = 5;
/// A tracepoint of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracepoint {
    /// The process's number.
    pub process: u32,
    /// Its number in the process.
    pub id: u32,
    /// Its provider.
    pub provider: String,
    /// Its name there.
    pub name: String,
    /// The names of its fields.
    pub fields: Vec<String>,
}

impl Tracepoint {
    /// `PROVIDER:NAME`.
    pub(crate) fn full_name(&self) -> String {
        format!("{}:{}", self.provider, self.name)
    }
}

/// The fields of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFields {
    /// The number of its tracepoint in the process.
    pub tracepoint: u32,
    /// The values of its fields, in the tracepoint's order.
    pub values: Vec<FieldValue>,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FieldValue {
    /// A signed number.
    I64(i64),
    /// An unsigned number.
    U64(u64),
    /// The bits of a floating-point number.
    F64(u64),
    /// A string; bytes that are not UTF-8 are replaced.
    Text(String),
    /// The beginning of a longer string.
    CutText(String),
    /// A null pointer instead of a string.
    Null,
}

impl From<shm_format::FieldValue<'_>> for FieldValue {
    fn from(value: shm_format::FieldValue<'_>) -> Self {
        match value {
            shm_format::FieldValue::I64(value) => Self::I64(value),
            shm_format::FieldValue::U64(value) => Self::U64(value),
            shm_format::FieldValue::F64(value) => Self::F64(value.to_bits()),
            shm_format::FieldValue::Str(text, false) => {
                Self::Text(String::from_utf8_lossy(text).into_owned())
            }
            shm_format::FieldValue::Str(text, true) => {
                Self::CutText(String::from_utf8_lossy(text).into_owned())
            }
            shm_format::FieldValue::Null => Self::Null,
        }
    }
}

impl FieldValue {
    /// Its value as a signed integer, if it fits.
    pub fn number(&self) -> Option<i64> {
        match *self {
            Self::I64(value) => Some(value),
            Self::U64(value) => i64::try_from(value).ok(),
            _ => None,
        }
    }
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::I64(value) => write!(f, "{value}"),
            Self::U64(value) => write!(f, "{value}"),
            Self::F64(bits) => write!(f, "{}", f64::from_bits(*bits)),
            Self::Text(text) => f.write_str(text),
            Self::CutText(text) => write!(f, "{text}…"),
            Self::Null => f.write_str("(null)"),
        }
    }
}

impl Serialize for FieldValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::I64(value) => serializer.serialize_i64(*value),
            Self::U64(value) => serializer.serialize_u64(*value),
            Self::F64(bits) if f64::from_bits(*bits).is_finite() => {
                serializer.serialize_f64(f64::from_bits(*bits))
            }
            // JSON has no infinities and no NaN.
            Self::F64(_) | Self::CutText(_) => serializer.collect_str(self),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Null => serializer.serialize_none(),
        }
    }
}

/// Which fields distinguish events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing: all events are equal.
    #[default]
    Nothing,
    /// The names of their tracepoints.
    Names,
    /// The field of this name.
    Field(String),
    /// Everything.
    Everything,
}

/// The wanted fields of events, shared by all events with equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Carried {
    /// `PROVIDER:NAME`; empty if it is not wanted.
    pub event: String,
    /// Fields with their names.
    pub fields: Vec<(String, FieldValue)>,
}

/// The tracepoints in a profile.
#[derive(Clone, Debug, Default)]
pub struct Tracepoints {
    known: HashMap<(u32, u32), Tracepoint>,
    /// Distinct fields of events; numbers begin with 1.
    carried: Vec<Carried>,
    numbers: HashMap<Carried, u32>,
    wanted: Wanted,
}

impl Tracepoints {
    /// Adds a tracepoint.
    pub fn learn(&mut self, tracepoint: Tracepoint) {
        self.known.insert((tracepoint.process, tracepoint.id), tracepoint);
    }

    /// Whether there are any.
    pub fn are_there(&self) -> bool {
        !self.known.is_empty()
    }

    /// A tracepoint of a process.
    pub fn get(&self, process: u32, id: u32) -> Option<&Tracepoint> {
        self.known.get(&(process, id))
    }

    /// `PROVIDER:NAME` of a tracepoint of a process; a number if its description is missing.
    pub fn name(&self, process: u32, id: u32) -> String {
        self.get(process, id).map_or_else(|| format!("tracepoint {id}"), Tracepoint::full_name)
    }

    /// Sets which fields distinguish events.
    pub(crate) fn want(&mut self, wanted: Wanted) {
        self.wanted = wanted;
    }

    /// The number of an event's wanted fields; 0 if it has none.
    pub(crate) fn number(&mut self, process: u32, fields: &EventFields) -> u32 {
        let Some(carried) = self.of_event(process, fields) else { return 0 };
        if let Some(&number) = self.numbers.get(&carried) {
            return number;
        }
        self.carried.push(carried.clone());
        let number = self.carried.len() as u32;
        self.numbers.insert(carried, number);
        number
    }

    /// The wanted fields of an event.
    fn of_event(&self, process: u32, fields: &EventFields) -> Option<Carried> {
        let mut named = self.named(process, fields).map(|(name, value)| (name.into_owned(), value.clone()));
        let name = || self.name(process, fields.tracepoint);
        Some(match &self.wanted {
            Wanted::Nothing => return None,
            Wanted::Names => Carried { event: name(), fields: Vec::new() },
            Wanted::Everything => Carried { event: name(), fields: named.collect() },
            Wanted::Field(wanted) => {
                Carried { event: String::new(), fields: vec![named.find(|(name, _)| name == wanted)?] }
            }
        })
    }

    /// The fields with this number; `None` for 0.
    pub fn carried(&self, number: u32) -> Option<&Carried> {
        self.carried.get((number as usize).checked_sub(1)?)
    }

    /// The names of all fields.
    pub fn field_names(&self) -> BTreeSet<&str> {
        self.known.values().flat_map(|tracepoint| &tracepoint.fields).map(String::as_str).collect()
    }

    /// Name and value of each field of an event.
    pub fn named<'a>(
        &'a self,
        process: u32,
        fields: &'a EventFields,
    ) -> impl Iterator<Item = (Cow<'a, str>, &'a FieldValue)> {
        let known = self.get(process, fields.tracepoint);
        fields.values.iter().enumerate().map(move |(at, value)| {
            let name = known.and_then(|known| known.fields.get(at));
            (
                name.map_or_else(|| Cow::Owned(format!("field{at}")), |name| Cow::Borrowed(name.as_str())),
                value,
            )
        })
    }
}

/// Fields with their names, as a JSON object.
#[derive(Clone, Copy, Debug)]
pub struct FieldObject<'a>(&'a [(String, FieldValue)]);

impl<'a> FieldObject<'a> {
    /// The object of these fields, if there are any.
    pub fn of(fields: &'a [(String, FieldValue)]) -> Option<Self> {
        (!fields.is_empty()).then_some(Self(fields))
    }
}

impl Serialize for FieldObject<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_as_text_and_as_json() {
        let values = [
            (FieldValue::I64(-1), "-1", "-1"),
            (FieldValue::U64(u64::MAX), "18446744073709551615", "18446744073709551615"),
            (FieldValue::F64(0.5f64.to_bits()), "0.5", "0.5"),
            (FieldValue::F64(f64::NAN.to_bits()), "NaN", "\"NaN\""),
            (FieldValue::Text("a\"b".into()), "a\"b", "\"a\\\"b\""),
            (FieldValue::CutText("abc".into()), "abc…", "\"abc…\""),
            (FieldValue::Null, "(null)", "null"),
        ];
        for (value, text, json) in values {
            assert_eq!(
                (value.to_string().as_str(), serde_json::to_string(&value).unwrap().as_str()),
                (text, json)
            );
        }
    }

    #[test]
    fn events_are_told_apart_by_what_is_wanted() {
        let number = |wanted: &Wanted, id, values: &[u64]| {
            let mut tracepoints = Tracepoints::default();
            for (id, name) in [(1, "a"), (2, "b")] {
                let (provider, name, fields) = ("app".into(), name.into(), vec!["x".into(), "y".into()]);
                tracepoints.learn(Tracepoint { process: 0, id, provider, name, fields });
            }
            tracepoints.want(wanted.clone());
            let values = values.iter().copied().map(FieldValue::U64).collect();
            let number = tracepoints.number(0, &EventFields { tracepoint: id, values });
            tracepoints.carried(number).cloned()
        };
        let carried = |event: &str, fields: &[(&str, u64)]| {
            let field = |(name, value): &(&str, u64)| ((*name).to_owned(), FieldValue::U64(*value));
            Some(Carried { event: event.into(), fields: fields.iter().map(field).collect() })
        };
        assert_eq!(number(&Wanted::Nothing, 1, &[7, 8]), None);
        assert_eq!(number(&Wanted::Names, 2, &[7, 8]), carried("app:b", &[]));
        assert_eq!(number(&Wanted::Field("y".into()), 2, &[7, 8]), carried("", &[("y", 8)]));
        assert_eq!(number(&Wanted::Field("z".into()), 2, &[7, 8]), None);
        assert_eq!(number(&Wanted::Everything, 1, &[7, 8]), carried("app:a", &[("x", 7), ("y", 8)]));
        // Neither it nor its third field has been described.
        assert_eq!(number(&Wanted::Everything, 3, &[7]), carried("tracepoint 3", &[("field0", 7)]));
    }
}
