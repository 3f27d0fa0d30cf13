//! Functions in which the C library itself loads libraries: name services and character sets.
//!
//! These loads bypass `dlopen`, so the first samples in such a library have no module. The handler notes that, and the
//! next call of an interposed function, by any thread, rescans the loaded objects. The calls themselves are not
//! modified: each function here only jumps to the real one.

use super::loader::refresh;
use super::real::real_functions;
use handler::snapshot;

/// Defines functions that rescan if necessary and jump to the real one, preserving all argument registers.
macro_rules! pass_on {
    ($($constant:ident = $function:ident, $plan:ident;)*) => {$(
        /// As the C library says.
        ///
        /// # Safety
        /// As the C library says.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $function() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                platform::push!(rdi rsi rdx rcx r8 r9),
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "call {plan}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                platform::pop!(r9 r8 rcx rdx rsi rdi),
                "jmp rax",
                ".cfi_endproc",
                plan = sym $plan,
            )
        }

        unsafe extern "C" fn $plan() -> usize {
            if snapshot::is_stale() {
                refresh();
            }
            $constant.address().unwrap_or(missing as extern "C" fn() -> usize as usize)
        }
    )*};
}

/// Substitute for a function that the C library does not have.
extern "C" fn missing() -> usize {
    0
}

real_functions! {
    GETADDRINFO = c"getaddrinfo";
    GETNAMEINFO = c"getnameinfo";
    GETHOSTBYNAME = c"gethostbyname";
    GETHOSTBYNAME_R = c"gethostbyname_r";
    GETPWNAM = c"getpwnam";
    GETPWNAM_R = c"getpwnam_r";
    GETPWUID = c"getpwuid";
    GETPWUID_R = c"getpwuid_r";
    GETGRNAM = c"getgrnam";
    GETGRNAM_R = c"getgrnam_r";
    GETGRGID = c"getgrgid";
    GETGRGID_R = c"getgrgid_r";
    GETGROUPLIST = c"getgrouplist";
    INITGROUPS = c"initgroups";
    ICONV_OPEN = c"iconv_open";
    ICONV = c"iconv";
}

pass_on! {
    GETADDRINFO = getaddrinfo, plan_getaddrinfo;
    GETNAMEINFO = getnameinfo, plan_getnameinfo;
    GETHOSTBYNAME = gethostbyname, plan_gethostbyname;
    GETHOSTBYNAME_R = gethostbyname_r, plan_gethostbyname_r;
    GETPWNAM = getpwnam, plan_getpwnam;
    GETPWNAM_R = getpwnam_r, plan_getpwnam_r;
    GETPWUID = getpwuid, plan_getpwuid;
    GETPWUID_R = getpwuid_r, plan_getpwuid_r;
    GETGRNAM = getgrnam, plan_getgrnam;
    GETGRNAM_R = getgrnam_r, plan_getgrnam_r;
    GETGRGID = getgrgid, plan_getgrgid;
    GETGRGID_R = getgrgid_r, plan_getgrgid_r;
    GETGROUPLIST = getgrouplist, plan_getgrouplist;
    INITGROUPS = initgroups, plan_initgroups;
    ICONV_OPEN = iconv_open, plan_iconv_open;
    ICONV = iconv, plan_iconv;
}
