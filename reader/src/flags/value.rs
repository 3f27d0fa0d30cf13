//! The flag that says which value of sampled allocations is shown.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use selfwind_profile::heap::HeapValue;
use selfwind_profile::profile::Profile;

/// Which value of sampled allocations.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct ValueArgs {
    /// Of a heap profile (record -e alloc): alloc_space, alloc_objects, inuse_space (bytes not freed) or inuse_objects [default: alloc_space]
    #[arg(long, value_name = "VALUE", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(HeapValue::ALL.map(HeapValue::name)).try_map(|name| name.parse::<HeapValue>()))]
    value: Option<HeapValue>,
}

impl ValueArgs {
    /// That value, if one was asked for.
    pub(crate) fn value(self) -> Option<HeapValue> {
        self.value
    }
}

/// Makes `value` the weight of a profile; refuses one that has no such value.
pub(crate) fn choose(profile: &mut Profile, value: Option<HeapValue>) -> anyhow::Result<()> {
    if let Some(value) = value {
        if !profile.is_of_heap() {
            anyhow::bail!(
                "the profile has no {}: it is of {}, not of allocations (record -e alloc)",
                value.name(),
                profile.session.source
            );
        }
        profile.choose(value);
    }
    Ok(())
}
