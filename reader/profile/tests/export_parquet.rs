//! The Parquet export, read back by the library, and queried by DuckDB where that is at hand.

mod export;

use std::fs::File;
use std::path::Path;

use export::consumers::python;
use export::{Folded, element, make, make_empty};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Row, RowAccessor};
use selfwind_profile::output::{Format, export};

fn rows(path: &Path) -> Vec<Row> {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    reader.get_row_iter(None).unwrap().map(|row| row.unwrap()).collect()
}

/// The index of a column.
fn index_of(row: &Row, column: &str) -> usize {
    row.get_column_iter().position(|(name, _)| name == column).unwrap_or_else(|| panic!("no column {column}"))
}

fn number(row: &Row, column: &str) -> i64 {
    let index = index_of(row, column);
    row.get_long(index).or_else(|_| row.get_timestamp_micros(index)).unwrap()
}

fn text<'a>(row: &'a Row, column: &str) -> &'a str {
    row.get_string(index_of(row, column)).unwrap()
}

fn fold(rows: &[Row]) -> Folded {
    let mut folded = Folded::new();
    for stack in rows.chunk_by(|a, b| number(a, "stack") == number(b, "stack")) {
        let first = &stack[0];
        assert!(stack.iter().enumerate().all(|(depth, row)| number(row, "depth") == depth as i64));
        let thread = match text(first, "thread") {
            "" => text(first, "process"),
            name => name,
        };
        let mut line = format!("{}-{}/{}", element(thread), number(first, "pid"), number(first, "tid"));
        match text(first, "end") {
            "root" => {}
            end => line += &format!(";[truncated: {end}]"),
        }
        let bare = text(first, "function") == "[no frames]" && line.contains(";[");
        for row in stack.iter().rev().filter(|_| !bare) {
            line = line + ";" + &element(text(row, "function"));
        }
        *folded.entry(line).or_default() += number(first, "weight") as u64;
    }
    folded
}

#[test]
fn nothing_is_lost() {
    let made = make("parquet");
    let file = made.path.with_extension("parquet");
    std::fs::write(&file, made.export(Format::Parquet)).unwrap();
    let rows = rows(&file);
    let weight: i64 =
        rows.iter().filter(|row| number(row, "depth") == 0).map(|row| number(row, "weight")).sum();
    assert_eq!(weight as u64, made.weight);
    assert_eq!(fold(&rows), made.folded);
    let inlined = rows.iter().find(|row| row.get_bool(index_of(row, "inlined")).unwrap()).unwrap();
    assert!(text(inlined, "file").ends_with("mixer.c") && number(inlined, "line") > 0);
    assert_eq!((text(inlined, "module"), text(inlined, "build_id").len()), ("mixer", 40));
    assert_eq!((text(inlined, "found_by"), text(inlined, "command")), ("cfi", "mixer a \"b\"\n"));
    duckdb(&file, made.weight);
}

/// From PyPI: `duckdb`.
fn duckdb(file: &Path, weight: u64) {
    let script = "import sys, duckdb\n\
        one = lambda query: duckdb.execute(query.format(sys.argv[1])).fetchone()[0]\n\
        print(int(one(\"select sum(weight) from '{}' where depth = 0\")),\n\
              int(one(\"select count(distinct function) from '{}' where file like '%mixer.c'\")),\n\
              one(\"select min(epoch_ns(started)) from '{}'\"))";
    let Some(answer) = python(script, &[file]) else { return };
    let numbers: Vec<u64> = answer.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert_eq!((numbers[0], numbers[2]), (weight, export::STARTED));
    assert!(numbers[1] >= 3, "{answer}");
}

#[test]
fn a_profile_without_samples_can_be_opened() {
    let path = make_empty("parquet");
    let file = path.with_extension("parquet");
    let mut out = Vec::new();
    export(Format::Parquet, &path, &mut out).unwrap();
    std::fs::write(&file, out).unwrap();
    assert!(rows(&file).is_empty());
}
