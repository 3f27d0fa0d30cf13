//! Call chains recorded by the kernel: kernel addresses, and user addresses found by frame pointers.

use linux_perf_event_reader::constants::{PERF_CONTEXT_KERNEL, PERF_CONTEXT_MAX, PERF_CONTEXT_USER};
use linux_perf_event_reader::{CpuMode, RawDataU64, SampleRecord};

/// Maximum number of addresses kept of each part.
const FRAMES_MAX: usize = 1000;

/// The call chain of one sample.
#[derive(Default)]
pub(crate) struct Callchain {
    /// Addresses in the kernel, leaf first.
    pub(crate) kernel: Vec<u64>,
    /// Addresses in the program, leaf first.
    pub(crate) user: Vec<u64>,
}

impl Callchain {
    /// Stores the chain of a sample. A sample without a chain has only its own address.
    pub(crate) fn fill(&mut self, sample: &SampleRecord<'_>) {
        self.kernel.clear();
        self.user.clear();
        match &sample.callchain {
            Some(chain) if !chain.is_empty() => self.split(chain, sample.cpu_mode),
            _ => {
                if let (Some(ip), Some(part)) = (sample.ip, self.part(sample.cpu_mode)) {
                    part.push(ip);
                }
            }
        }
    }

    fn split(&mut self, chain: &RawDataU64<'_>, mode: CpuMode) {
        let mut mode = mode;
        for address in (0..chain.len()).filter_map(|number| chain.get(number)) {
            match address {
                PERF_CONTEXT_KERNEL => mode = CpuMode::Kernel,
                PERF_CONTEXT_USER => mode = CpuMode::User,
                PERF_CONTEXT_MAX.. => mode = CpuMode::Unknown,
                address => {
                    if let Some(part) = self.part(mode).filter(|part| part.len() < FRAMES_MAX) {
                        part.push(address);
                    }
                }
            }
        }
    }

    fn part(&mut self, mode: CpuMode) -> Option<&mut Vec<u64>> {
        match mode {
            CpuMode::Kernel => Some(&mut self.kernel),
            CpuMode::User => Some(&mut self.user),
            _ => None,
        }
    }
}
