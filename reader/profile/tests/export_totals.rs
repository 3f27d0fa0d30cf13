//! Every format adds up to the weight of the profile: no conversion loses or invents a sample.

mod export;

use std::io::Read;
use std::path::Path;
use std::process::Command;

use export::make;
use selfwind_profile::output::Format;
use selfwind_tests::skip::skip;
use serde_json::Value;

/// What the weights in a file of a format add up to; none if its reader is not installed.
fn total(format: Format, bytes: &[u8], path: &Path) -> Option<u64> {
    let text = || std::str::from_utf8(bytes).unwrap();
    let json = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    let sum = |values: &Value| values.as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).sum::<u64>();
    Some(match format {
        Format::Folded => {
            text().lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
        }
        // The title of the frame that holds all others.
        Format::Flamegraph => {
            let (_, all) = text().split_once("<title>all (").unwrap();
            all.split(' ').next().unwrap().replace(',', "").parse().unwrap()
        }
        Format::Jsonl => text().lines().map(|line| json(line)["weight"].as_u64().unwrap()).sum(),
        Format::Pprof => pprof(bytes),
        Format::Firefox => {
            let threads = json(text())["threads"].take();
            threads.as_array().unwrap().iter().map(|thread| sum(&thread["samples"]["weight"])).sum()
        }
        Format::Speedscope => {
            let profiles = json(text())["profiles"].take();
            profiles.as_array().unwrap().iter().map(|profile| sum(&profile["weights"])).sum()
        }
        Format::Perf => return perf(bytes, path),
        Format::Parquet => parquet(bytes),
    })
}

/// The first value of every sample: fields 2 of each field 2.
fn pprof(gzipped: &[u8]) -> u64 {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(gzipped).read_to_end(&mut bytes).unwrap();
    let samples = fields(&bytes).into_iter().filter(|&(number, _)| number == 2);
    let values = samples.flat_map(|(_, sample)| fields(sample)).filter(|&(number, _)| number == 2);
    values.map(|(_, mut packed)| varint(&mut packed)).sum()
}

/// The length-delimited fields of a message.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = varint(&mut bytes);
        if key & 7 == 2 {
            let (field, rest) = bytes.split_at(value as usize);
            fields.push((key >> 3, field));
            bytes = rest;
        }
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (&first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first < 0x80 {
            break;
        }
    }
    value
}

fn perf(bytes: &[u8], path: &Path) -> Option<u64> {
    let file = path.with_extension("perf.data");
    std::fs::write(&file, bytes).unwrap();
    let mut perf = Command::new("perf");
    perf.args(["script", "-G", "-F", "period", "-i"]).arg(&file);
    let Ok(output) = perf.output() else {
        skip("cannot run perf (Debian: linux-perf)");
        return None;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.split_whitespace().map(|period| period.parse::<u64>().unwrap()).sum())
}

fn parquet(bytes: &[u8]) -> u64 {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    let reader = SerializedFileReader::new(bytes::Bytes::copy_from_slice(bytes)).unwrap();
    let rows = reader.get_row_iter(None).unwrap().map(|row| row.unwrap());
    let number = |row: &parquet::record::Row, wanted: &str| {
        row.get_long(row.get_column_iter().position(|(name, _)| name == wanted).unwrap()).unwrap()
    };
    rows.filter(|row| number(row, "depth") == 0).map(|row| number(&row, "weight") as u64).sum()
}

#[test]
fn every_format_has_the_weight_of_the_profile() {
    let made = make("totals");
    for format in Format::ALL {
        let bytes = made.export(format);
        if let Some(total) = total(format, &bytes, &made.path) {
            assert_eq!(total, made.weight, "{}", format.name());
        }
    }
}
