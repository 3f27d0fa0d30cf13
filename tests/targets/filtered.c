/* Hazard: attaching to a process with a seccomp filter, as services and containers have. A system call that is not on the
 * filter's list kills it.
 * usage: filtered SECONDS [NUMBER]   works in two threads for that long; system call NUMBER fails, although it is listed */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The system calls that the agent makes. With a shorter list, attaching is refused, or kills the program. */
static const int listed[] = {
    SYS_rt_sigprocmask, SYS_mprotect, SYS_gettid, SYS_exit, SYS_rt_sigreturn, SYS_mmap, SYS_munmap, SYS_mremap, SYS_madvise,
    SYS_munlock, SYS_openat, SYS_close, SYS_read, SYS_fstat, SYS_lstat, SYS_getdents64, SYS_readlinkat, SYS_getcwd,
    SYS_ftruncate, SYS_fallocate, SYS_mkdirat, SYS_symlinkat, SYS_unlinkat, SYS_setsockopt, SYS_recvmsg, SYS_getpid,
    SYS_getppid, SYS_geteuid, SYS_prlimit64, SYS_prctl, SYS_clock_gettime, SYS_getrandom, SYS_nanosleep, SYS_sched_yield,
    SYS_futex, SYS_rt_sigaction, SYS_rt_sigtimedwait, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,
    SYS_timer_create, SYS_timer_settime, SYS_timer_gettime, SYS_timer_delete, SYS_getitimer, SYS_setitimer, SYS_write,
    SYS_pread64,
    /* The program's own, and those made at the start of a C library thread. */
    SYS_exit_group, SYS_rseq, SYS_set_robust_list,
};

static double seconds;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

static void *filtered_work(void *unused) {
  volatile unsigned long x = 1;
  for (double end = now() + seconds; now() < end;)
    for (int i = 0; i < 100000; i++)
      x = x * 6364136223846793005ul + 1;
  return unused;
}

static void install(int failing) {
  struct sock_filter program[300];
  size_t at = 0;
  struct sock_filter architecture[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)failing, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
      /* Fails instead of being permitted, as in container engines. */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
  };
  for (size_t i = 0; i < sizeof architecture / sizeof *architecture; i++)
    program[at++] = architecture[i];
  for (size_t i = 0; i < sizeof listed / sizeof *listed; i++) {
    program[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)listed[i], 0, 1);
    program[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  struct sock_filter rest[] = {
      /* Threads, but no namespaces. */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x7e020000, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      /* Local sockets only. */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socketpair, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
    program[at++] = rest[i];
  struct sock_fprog whole = {(unsigned short)at, program};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &whole) != 0) {
    perror("seccomp");
    exit(1);
  }
}

int main(int argc, char **argv) {
  (void)argc;
  seconds = atof(argv[1]);
  pthread_t thread;
  pthread_create(&thread, NULL, filtered_work, NULL);
  setvbuf(stdout, NULL, _IONBF, 0);
  install(argv[2] ? atoi(argv[2]) : -1);
  puts("ready");
  filtered_work(NULL);
  pthread_join(thread, NULL);
  puts("done");
  return 0;
}
