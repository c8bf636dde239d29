"""Which system calls a sandboxed process may make, as a program for the kernel."""

from __future__ import annotations

import errno
import functools
import tempfile
from typing import Any

from marlogue.envs.optional import require


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Calls that say that somebody tries to get out: they end the process with SIGSYS.
KILLED = _names("""
    fork vfork execveat
    connect bind listen accept accept4
    ptrace process_vm_readv process_vm_writev pidfd_open pidfd_getfd pidfd_send_signal kcmp
    mount umount2 umount pivot_root chroot unshare setns fsopen fsconfig fsmount fspick open_tree
    move_mount mount_setattr
    bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register
    keyctl add_key request_key
    init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff
    acct quotactl syslog settimeofday clock_settime adjtimex clock_adjtime sethostname
    setdomainname iopl ioperm modify_ldt open_by_handle_at name_to_handle_at fanotify_init
""")

# What Python programs need. A call in neither list does not exist in here (ENOSYS).
ALLOWED = _names("""
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek _llseek sendfile
    sendfile64 copy_file_range splice tee close close_range dup dup2 dup3 fcntl fcntl64 ioctl flock
    open openat openat2 creat stat lstat fstat stat64 lstat64 fstat64 newfstatat fstatat64 statx
    statfs fstatfs statfs64 fstatfs64 access faccessat faccessat2 readlink readlinkat getdents
    getdents64 getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2
    link linkat symlink symlinkat truncate ftruncate truncate64 ftruncate64 fallocate fsync
    fdatasync sync_file_range fadvise64 chmod fchmod fchmodat fchmodat2 umask utime utimes utimensat
    futimesat getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
    mmap mmap2 munmap mremap mprotect madvise msync mincore mlock munlock membarrier brk
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait
    sigaltstack signalfd signalfd4 kill tkill tgkill rt_sigqueueinfo pause alarm getitimer setitimer
    timer_create timer_settime timer_gettime timer_getoverrun timer_delete timerfd_create
    timerfd_settime timerfd_gettime nanosleep clock_nanosleep clock_gettime clock_getres
    gettimeofday time times restart_syscall
    getpid gettid getppid getpgid getpgrp getsid setsid setpgid getuid geteuid getgid getegid
    getresuid getresgid getgroups uname sysinfo getrusage getrlimit setrlimit prlimit64
    getpriority setpriority sched_yield sched_getaffinity sched_setaffinity sched_getparam
    sched_getscheduler sched_get_priority_max sched_get_priority_min getcpu capget prctl
    arch_prctl set_tid_address set_robust_list get_robust_list rseq futex futex_time64 futex_waitv
    wait4 waitid waitpid exit exit_group getrandom
    poll ppoll select pselect6 _newselect epoll_create epoll_create1 epoll_ctl epoll_wait
    epoll_pwait epoll_pwait2 eventfd eventfd2 pipe pipe2 sendto sendmsg recvfrom recvmsg
    getsockopt setsockopt getsockname getpeername shutdown
    setgroups setresgid setresuid execve
""")

CLONE_VM, CLONE_SIGHAND, CLONE_THREAD = 0x100, 0x800, 0x10000
AF_UNIX = 1


def library() -> Any:
    """The module pyseccomp.

    Raises:
        ImportError: it, or the system's libseccomp, is missing; says how to install it.
    """
    try:
        with require("pyseccomp", extra="sandbox"):
            import pyseccomp
    except RuntimeError as error:  # as it says that the system's library is missing
        raise ImportError(
            f"libseccomp could not be loaded ({error}); install it with the system's package "
            "manager, for instance: apt install libseccomp2"
        ) from error
    return pyseccomp


@functools.cache
def program() -> bytes:
    """The filter as BPF, for `bwrap --seccomp`.

    Raises:
        ImportError: see `library`.
    """
    seccomp = library()
    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.ENOSYS))
    rules.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)
    for action, names in ((seccomp.KILL_PROCESS, KILLED), (seccomp.ALLOW, ALLOWED)):
        for name in names:
            number = seccomp.resolve_syscall(seccomp.Arch.NATIVE, name)
            if number >= 0:  # else it is of another architecture, or newer than the library
                rules.add_rule(action, number)
    # Threads are made by clone with these flags; anything else makes a process. clone3, whose flags
    # a filter cannot see, does not exist, and libc falls back to clone.
    arg, masked = seccomp.Arg, seccomp.MASKED_EQ
    flags = (CLONE_VM, CLONE_SIGHAND, CLONE_THREAD)
    rules.add_rule(seccomp.ALLOW, "clone", arg(0, masked, sum(flags), sum(flags)))
    for flag in flags:
        rules.add_rule(seccomp.KILL_PROCESS, "clone", arg(0, masked, flag, 0))
    rules.add_rule(seccomp.ALLOW, "socketpair", arg(0, seccomp.EQ, AF_UNIX))  # asyncio needs it
    # libc asks a name service by such a socket, and does without where there is none.
    rules.add_rule(seccomp.KILL_PROCESS, "socket", arg(0, seccomp.NE, AF_UNIX))
    rules.add_rule(seccomp.ERRNO(errno.EACCES), "socket", arg(0, seccomp.EQ, AF_UNIX))
    return _bytes(rules)


@functools.cache
def last_program() -> bytes:
    """A second filter, which the interpreter adds when it has been started: no other program."""
    seccomp = library()
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    rules.add_rule(seccomp.KILL_PROCESS, "execve")
    return _bytes(rules)


def _bytes(rules: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
