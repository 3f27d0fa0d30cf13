//! The speedscope export, read back; and checked with speedscope's own schema where that is at hand.

mod export;

use std::collections::HashSet;

use export::consumers::{installed, python};
use export::{Folded, element, make, make_empty};
use selfwind_profile::output::{Format, export};
use serde_json::Value;

/// The stacks of all profiles.
fn fold(document: &Value) -> Folded {
    let frames = document["shared"]["frames"].as_array().unwrap();
    let mut folded = Folded::new();
    for profile in document["profiles"].as_array().unwrap() {
        let (samples, weights) =
            (profile["samples"].as_array().unwrap(), profile["weights"].as_array().unwrap());
        assert_eq!(
            (samples.len(), &profile["type"], &profile["unit"]),
            (weights.len(), &"sampled".into(), &"none".into())
        );
        let mut sum = 0;
        for (sample, weight) in samples.iter().zip(weights) {
            let mut stack = element(profile["name"].as_str().unwrap());
            for frame in sample.as_array().unwrap() {
                let frame = &frames[frame.as_u64().unwrap() as usize];
                stack = stack + ";" + &element(frame["name"].as_str().unwrap());
            }
            *folded.entry(stack).or_default() += weight.as_u64().unwrap();
            sum += weight.as_u64().unwrap();
        }
        assert_eq!((profile["startValue"].as_u64(), profile["endValue"].as_u64()), (Some(0), Some(sum)));
    }
    folded
}

#[test]
fn nothing_is_lost() {
    let made = make("speedscope");
    let document: Value = serde_json::from_slice(&made.export(Format::Speedscope)).unwrap();
    let folded = fold(&document);
    assert_eq!(folded.values().sum::<u64>(), made.weight);
    assert_eq!(folded, made.folded);
    let frames = document["shared"]["frames"].as_array().unwrap();
    assert_eq!(
        frames.iter().map(Value::to_string).collect::<HashSet<_>>().len(),
        frames.len(),
        "twice the same"
    );
    assert!(
        frames
            .iter()
            .any(|frame| { frame["name"] == "stir" && frame["file"].as_str().unwrap().ends_with("mixer.c") })
    );
    assert_eq!(document["name"], "mixer a \"b\"\n");
    let active = document["activeProfileIndex"].as_u64().unwrap() as usize;
    let weight = |profile: &Value| profile["endValue"].as_u64().unwrap();
    let profiles = document["profiles"].as_array().unwrap();
    assert_eq!(weight(&profiles[active]), profiles.iter().map(weight).max().unwrap());
}

#[test]
fn a_profile_without_samples_can_be_opened() {
    let mut out = Vec::new();
    export(Format::Speedscope, &make_empty("speedscope"), &mut out).unwrap();
    let document: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(document["profiles"].as_array().unwrap().len(), 1);
    assert_eq!(fold(&document), Folded::new());
}

#[test]
fn speedscopes_schema_accepts_it() {
    let Some(schema) = installed("node_modules/speedscope/dist/release/file-format-schema.json") else {
        return;
    };
    let made = make("speedscope-schema");
    let file = made.path.with_extension("speedscope.json");
    std::fs::write(&file, made.export(Format::Speedscope)).unwrap();
    let script = "import json, sys, jsonschema\n\
                  jsonschema.validate(json.load(open(sys.argv[2])), json.load(open(sys.argv[1])))";
    python(script, &[&schema, &file]);
}
