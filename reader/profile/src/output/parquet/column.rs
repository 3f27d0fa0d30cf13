//! The values of one column.

use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};

/// Values of one type; `present` has 1 for each row with a value, 0 for the others.
pub(super) enum Column {
    Text { values: Vec<ByteArray>, present: Vec<i16> },
    Number { values: Vec<i64>, present: Vec<i16> },
    Flag(Vec<bool>),
}

impl Column {
    pub(super) fn text() -> Self {
        Column::Text { values: Vec::new(), present: Vec::new() }
    }

    pub(super) fn number() -> Self {
        Column::Number { values: Vec::new(), present: Vec::new() }
    }

    pub(super) fn flag() -> Self {
        Column::Flag(Vec::new())
    }

    /// Adds a text. Does nothing for a column of another type; writing then fails because the column is too short.
    pub(super) fn put_text(&mut self, value: Option<ByteArray>) {
        if let Column::Text { values, present } = self {
            present.push(value.is_some().into());
            values.extend(value);
        }
    }

    /// Adds a number.
    pub(super) fn put(&mut self, value: Option<i64>) {
        if let Column::Number { values, present } = self {
            present.push(value.is_some().into());
            values.extend(value);
        }
    }

    /// Adds a Boolean.
    pub(super) fn put_flag(&mut self, value: bool) {
        if let Column::Flag(values) = self {
            values.push(value);
        }
    }

    /// Removes all values and keeps the memory.
    pub(super) fn clear(&mut self) {
        match self {
            Column::Text { values, present } => {
                values.clear();
                present.clear();
            }
            Column::Number { values, present } => {
                values.clear();
                present.clear();
            }
            Column::Flag(values) => values.clear(),
        }
    }

    /// Writes all values. Required columns ignore `present`.
    pub(super) fn write(&self, writer: &mut ColumnWriter<'_>) -> Result<()> {
        match (self, writer) {
            (Column::Text { values, present }, ColumnWriter::ByteArrayColumnWriter(writer)) => {
                writer.write_batch(values, Some(present), None)?;
            }
            (Column::Number { values, present }, ColumnWriter::Int64ColumnWriter(writer)) => {
                writer.write_batch(values, Some(present), None)?;
            }
            (Column::Flag(values), ColumnWriter::BoolColumnWriter(writer)) => {
                writer.write_batch(values, None, None)?;
            }
            _ => return Err(ParquetError::General("a column of another type than the schema says".into())),
        }
        Ok(())
    }
}
