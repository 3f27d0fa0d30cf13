//! The functions that used most of a program's time, as a program of its own prints them:
//! `cargo run -p selfwind-profile --example hottest -- selfwind.data`.

use std::error::Error;
use std::path::Path;

use selfwind_profile::call_tree::{Stacks, weights};
use selfwind_profile::profile;
use selfwind_profile::selection::{Filters, Heading, Selection, Unit};
use selfwind_profile::symbolize::SymbolSources;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).unwrap_or_else(|| "selfwind.data".into());
    let profile = profile::load(Path::new(&path), &SymbolSources::default())?;
    let selection = Selection::new(&profile, Unit::Function, Heading::None, &Filters::default());
    let mut rows: Vec<_> = weights(&selection).into_iter().zip(0..).collect();
    rows.sort_by_key(|(weight, label)| (std::cmp::Reverse(weight.own), *label));
    println!("{} samples", profile.totals.samples);
    for (weight, label) in rows.iter().take(10).filter(|(weight, _)| weight.own > 0) {
        let percent = 100.0 * weight.own as f64 / profile.totals.weight as f64;
        println!("{percent:5.1}%  {}", selection.text(*label));
    }
    Ok(())
}
