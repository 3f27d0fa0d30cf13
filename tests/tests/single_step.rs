//! After every instruction, the stack the unwinder finds equals the shadow stack.

use std::ffi::OsStr;
use std::io;

use nix::sys::signal::Signal;
use selfwind_tests::single_step::image::Images;
use selfwind_tests::single_step::stepper::{Moment, Observer, Plan, Stepper};
use selfwind_tests::single_step::tracee::Tracee;
use selfwind_tests::target::Target;

struct Nobody;

impl Observer for Nobody {
    fn remapped(&mut self, _: &Tracee, _: &Images) -> io::Result<()> {
        Ok(())
    }
    fn moment(&mut self, _: &Moment<'_>) {}
    fn landed(&mut self, _: &Moment<'_>) {}
}

#[test]
fn the_shadow_stack_explains_every_return() {
    let program = Target::c("steps").named("steps-lazy", &["-lm", "-Wl,-z,lazy"]).build();
    let mut tracee =
        Tracee::start(&program, &[OsStr::new("fljsatc"), OsStr::new("2")], &[("LD_BIND_NOT", "1")]).unwrap();
    let plan = Plan { limit: u64::MAX, inject: Some((Signal::SIGUSR1, 997)) };
    let begin = std::time::Instant::now();
    let summary = Stepper::new(&tracee, plan).run(&mut Nobody).unwrap();
    println!("{summary:?} {:?}", begin.elapsed());
    println!("{}", tracee.output().unwrap());
    assert!(summary.unexplained.is_empty());
    assert_eq!(summary.status, Some(61));
}
