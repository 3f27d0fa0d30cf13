//! The value of `-e`.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use selfwind_profile::source_list;

use crate::sampling::sources::Sources;

/// Parses `-e`, and lists its values for shell completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourcesParser;

impl TypedValueParser for SourcesParser {
    type Value = Sources;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        let parse = |text: &str| text.parse::<Sources>();
        TypedValueParser::parse_ref(&parse, command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = source_list::CLOCKS.into_iter().chain(source_list::PROBES.map(|(name, _)| name));
        Some(Box::new(names.map(PossibleValue::new)))
    }
}
