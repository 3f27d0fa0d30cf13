//! Libraries that the C library loads itself, bypassing `dlopen`: stacks through them are complete all the same, except
//! those taken before the agent's next interposed call.

use selfwind_tests::recording::Recorder;
use selfwind_tests::target::Target;

#[test]
fn character_set_libraries_have_whole_stacks() {
    let recording = Recorder::at(997).record::<&str>(&Target::c("gconv").build(), &[]);
    if recording.outcome.status == 77 {
        println!("this C library has no conversion from ISO-8859-2 to UTF-16 in a library of its own");
        return;
    }
    assert_eq!(recording.outcome.status, 40, "{:?}", recording.outcome);
    recording.assert_adds_up();
    let (folded, stats) = (recording.folded(), recording.stats());
    let (all, reached) = (folded.total(), folded.inclusive("convert"));
    assert!(all >= 20, "{all} samples");
    assert!(reached * 10 >= all * 9, "of {all} only {reached} reach `convert`");
    assert!(stats.complete() > 0.9, "{:#}", stats.0);
}
