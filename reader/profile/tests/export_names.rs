//! The names of formats on the command line, and the endings of file names that ask for them.

use std::path::Path;

use selfwind_profile::output::Format;

#[test]
fn endings() {
    for (name, format) in [
        ("a.pb.gz", Some(Format::Pprof)),
        ("/tmp/x.y/a.pprof", Some(Format::Pprof)),
        ("a.speedscope.json", Some(Format::Speedscope)),
        ("a.json", Some(Format::Firefox)),
        ("speedscope.json", Some(Format::Firefox)),
        ("a.jsonl", Some(Format::Jsonl)),
        ("perf.data", Some(Format::Perf)),
        ("a.perf.data", Some(Format::Perf)),
        ("a.parquet", Some(Format::Parquet)),
        ("a.data", None),
        ("a.gz", None),
        ("pprof", None),
        ("selfwind.data", None),
    ] {
        assert_eq!(Format::from_path(Path::new(name)), format, "{name}");
    }
}

#[test]
fn names() {
    for (name, format) in
        [("pprof", Format::Pprof), ("firefox", Format::Firefox), ("speedscope", Format::Speedscope)]
    {
        assert_eq!((name.parse(), format.name()), (Ok(format), name));
    }
    assert!(
        "perl".parse::<Format>().unwrap_err().contains("jsonl, pprof, firefox, speedscope, perf, parquet")
    );
}
