//! Audits the agent's object file: it needs no library and no recent symbol versions, exports only the functions that
//! it interposes, and its handler calls nothing outside itself.

use std::collections::BTreeSet;
use std::fs;

use object::elf::{self, FileHeader64};
use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSymbol, RelocationFlags, RelocationTarget, SymbolKind};
use selfwind_tests::binary::{agent, workspace};

type Elf<'a> = ElfFile64<'a, Endianness>;

fn with_agent<T>(look: impl FnOnce(&Elf<'_>, &[u8]) -> T) -> T {
    let bytes = fs::read(agent()).expect("the agent is readable");
    let file = Elf::parse(&*bytes).expect("the agent is an ELF object");
    look(&file, &bytes)
}

fn dynamic(bytes: &[u8], tag: i64) -> Vec<u64> {
    let header = FileHeader64::<Endianness>::parse(bytes).expect("ELF");
    let endian = header.endian().expect("endianness");
    let sections = header.sections(endian, bytes).expect("sections");
    let (entries, _) = sections.dynamic(endian, bytes).expect("dynamic").expect("a shared object");
    let found = entries.iter().filter(|e| e.d_tag.get(endian) == tag);
    found.map(|e| e.d_val.get(endian)).collect()
}

#[test]
fn it_is_small() {
    let size = fs::metadata(agent()).expect("the agent").len();
    assert!(size < 390_144, "{size} bytes");
}

#[test]
fn it_needs_no_library_and_no_symbol_version() {
    with_agent(|_, bytes| {
        assert!(dynamic(bytes, elf::DT_NEEDED).is_empty(), "needs a library");
        assert!(dynamic(bytes, elf::DT_VERNEED).is_empty(), "needs symbol versions");
        assert!(dynamic(bytes, elf::DT_TEXTREL).is_empty(), "has text relocations");
        assert!(dynamic(bytes, elf::DT_JMPREL).is_empty(), "binds lazily");
        let flags = dynamic(bytes, elf::DT_FLAGS_1).first().copied().unwrap_or(0);
        assert_ne!(flags & u64::from(elf::DF_1_NOW), 0, "not bound at load");
        assert_ne!(flags & u64::from(elf::DF_1_NODELETE), 0, "may be unloaded under a running handler");
    });
}

#[test]
fn every_import_is_weak_and_known() {
    // Each can be missing: old glibc without libdl, musl, static-pie.
    let known: BTreeSet<&str> = [
        "dlsym",
        "dl_iterate_phdr",
        "_r_debug",
        "_dl_debug_addr",
        "environ",
        "__libc_stack_end",
        "pthread_key_create",
        "pthread_setspecific",
        "gnu_get_libc_version",
        "__libc_single_threaded",
        "_dl_find_object",
    ]
    .into();
    with_agent(|file, _| {
        for symbol in file.dynamic_symbols().filter(ObjectSymbol::is_undefined) {
            let name = symbol.name().expect("a name");
            assert!(name.is_empty() || symbol.is_weak(), "{name} must be there");
            assert!(name.is_empty() || known.contains(name), "{name} is imported");
            assert_ne!(name, "__tls_get_addr");
        }
    });
}

#[test]
fn it_exports_only_interposed_functions() {
    // And `selfwind_abi`, by which agent/include/selfwind.h finds it.
    let interposed: BTreeSet<&str> = INTERPOSED.split_whitespace().chain(["selfwind_abi"]).collect();
    with_agent(|file, _| {
        let exported: BTreeSet<&str> =
            file.dynamic_symbols().filter(|s| s.is_definition()).map(|s| s.name().expect("a name")).collect();
        let strange: Vec<_> = exported.difference(&interposed).collect();
        assert!(strange.is_empty(), "exports {strange:?}");
        for needed in ["pthread_create", "sigaction", "signal", "dlopen", "dlclose", "execve", "selfwind_abi"]
        {
            assert!(exported.contains(needed), "does not show {needed}");
        }
    });
}

/// C library functions whose use by the program the agent may have to see.
const INTERPOSED: &str = "
    pthread_create pthread_exit pthread_setname_np pthread_sigmask thrd_create clone fork _Fork vfork
    __monstartup
    sigaction __sigaction sigaltstack signal bsd_signal __bsd_signal sysv_signal __sysv_signal ssignal sigset sigignore sigprocmask
    sigwait sigwaitinfo sigtimedwait sigpending sigvec siginterrupt signalfd sigsuspend sighold sigrelse
    setitimer getitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete
    dlopen dlmopen dlclose dlsym
    execve execv execvp execvpe execl execlp execle execveat fexecve posix_spawn posix_spawnp
    exit _exit _Exit quick_exit abort syscall prctl ptrace seccomp close close_range closefrom dup2 dup3 daemon
    system popen seccomp_load unshare setns chroot
    getaddrinfo getnameinfo gethostbyname gethostbyname_r getpwnam getpwnam_r getpwuid getpwuid_r
    getgrnam getgrnam_r getgrgid getgrgid_r getgrouplist initgroups iconv_open iconv __register_frame __deregister_frame
";

#[test]
fn thread_local_storage_is_never_lazy() {
    with_agent(|file, _| {
        let relocations = file.dynamic_relocations().into_iter().flatten();
        for (address, relocation) in relocations {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            let lazy = [
                elf::R_X86_64_DTPMOD64,
                elf::R_X86_64_DTPOFF64,
                elf::R_X86_64_TLSDESC,
                elf::R_X86_64_JUMP_SLOT,
            ];
            assert!(!lazy.contains(&r_type), "relocation {r_type} at {address:#x}");
            let target = relocation.target();
            let fine = matches!(target, RelocationTarget::Symbol(_) | RelocationTarget::Absolute);
            assert!(fine, "{target:?} at {address:#x}");
        }
    });
}

/// Compiles the handler and the crates it consists of separately: what they call must be in themselves or in core.
#[test]
fn the_handler_calls_no_libc() {
    let target = selfwind_tests::binary::target_dir();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = std::process::Command::new(cargo)
        .args(["build", "--quiet", "--profile", "agent", "-p", "selfwind-handler", "--target-dir"])
        .arg(target.join("audit"))
        .env("CARGO_PROFILE_AGENT_LTO", "off")
        .env("CARGO_PROFILE_AGENT_STRIP", "none")
        .current_dir(workspace())
        .status()
        .expect("cargo runs");
    assert!(status.success(), "cargo build -p selfwind-handler: {status}");
    let directory = target.join("audit/agent/deps");
    let crates = [
        "libhandler-",
        "libinterpreter-",
        "libplatform-",
        "libunwind-",
        "libshm_format-",
        "libpython_layout-",
    ];
    let archives: Vec<_> = fs::read_dir(&directory)
        .expect("just built")
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| {
            let name = p.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".rlib") && crates.iter().any(|c| name.starts_with(c))
        })
        .collect();
    assert!(archives.len() >= crates.len(), "{archives:?}");
    let (mut defined, mut wanted) = (BTreeSet::new(), BTreeSet::new());
    for archive in &archives {
        symbols_of_archive(&fs::read(archive).expect("readable"), &mut defined, &mut wanted);
    }
    // Calls emitted by the compiler: to hidden functions of the agent, or of compiler-builtins.
    let from_compiler =
        ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen", "__udivti3", "_GLOBAL_OFFSET_TABLE_"];
    let foreign: Vec<_> = wanted
        .difference(&defined)
        .filter(|name| !name.contains("4core") && !from_compiler.contains(&name.as_str()))
        .filter(|name| !name.starts_with("_R") || !name.contains("core"))
        .collect();
    assert!(foreign.is_empty(), "the handler's objects want {foreign:?}");
    assert!(wanted.iter().all(|name| !name.contains("5alloc") && !name.contains("3std")), "{wanted:?}");
}

fn symbols_of_archive(bytes: &[u8], defined: &mut BTreeSet<String>, wanted: &mut BTreeSet<String>) {
    let archive = object::read::archive::ArchiveFile::parse(bytes).expect("an archive");
    for member in archive.members() {
        let data = member.expect("a member").data(bytes).expect("its bytes");
        let Ok(file) = object::File::parse(data) else { continue };
        for symbol in file.symbols() {
            let Ok(name) = symbol.name() else { continue };
            if symbol.is_undefined() && !name.is_empty() {
                wanted.insert(name.to_string());
            } else if symbol.is_definition() || symbol.kind() == SymbolKind::Tls {
                defined.insert(name.to_string());
            }
        }
    }
}
