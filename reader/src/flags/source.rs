//! The value of `-e`.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};

use crate::sampling::source::Source;

/// Reads `-e`, and tells shells what can be completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceParser;

impl TypedValueParser for SourceParser {
    type Value = Source;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        let parse = |text: &str| text.parse::<Source>();
        TypedValueParser::parse_ref(&parse, command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = ["auto", "cpu", "itimer", "perf", "offcpu", "alloc"];
        Some(Box::new(names.into_iter().map(PossibleValue::new)))
    }
}
