"""System calls by name: which ones a program under test needs, and their numbers on each processor."""

from __future__ import annotations

import platform

AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_BASIC = """
    read write pread64 pwrite64 readv writev preadv pwritev lseek close close_range fstat stat lstat newfstatat
    statx statfs fstatfs access faccessat faccessat2 readlink readlinkat getcwd chdir fchdir getdents64 dup dup2
    dup3 pipe pipe2 flock fsync fdatasync ftruncate fallocate fadvise64 sendfile copy_file_range poll ppoll
    select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 timerfd_create timerfd_settime
    timerfd_gettime mmap mprotect munmap mremap brk madvise mincore msync membarrier rt_sigaction rt_sigprocmask
    rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause alarm getitimer setitimer
    timer_create timer_settime timer_gettime timer_delete restart_syscall nanosleep clock_nanosleep
    clock_gettime clock_getres gettimeofday time times getpid gettid getppid getuid geteuid getgid getegid
    getgroups getresuid getresgid getpgrp uname sysinfo getrusage getrlimit setrlimit getrandom getcpu
    sched_yield futex set_robust_list set_tid_address rseq arch_prctl exit exit_group wait4 waitid
    sendto recvfrom sendmsg recvmsg shutdown getsockname getpeername getsockopt setsockopt
"""

BASIC = tuple(_BASIC.split())
"""Files that are open, memory, time, threads, signals to oneself. Nothing in it reaches another process or a host."""

OPEN = ("open", "openat")

WRITE = ("creat", "unlink", "unlinkat", "rename", "renameat", "renameat2")
"""No folders: the own folder stays flat, so that what it holds is counted and removed at a glance."""

_X86_64 = """
    read=0 write=1 pread64=17 pwrite64=18 readv=19 writev=20 preadv=295 pwritev=296 lseek=8 close=3
    close_range=436 fstat=5 stat=4 lstat=6 newfstatat=262 statx=332 statfs=137 fstatfs=138 access=21
    faccessat=269 faccessat2=439 readlink=89 readlinkat=267 getcwd=79 chdir=80 fchdir=81 getdents64=217 dup=32
    dup2=33 dup3=292 pipe=22 pipe2=293 flock=73 fsync=74 fdatasync=75 ftruncate=77 fallocate=285 fadvise64=221
    sendfile=40 copy_file_range=326 poll=7 ppoll=271 select=23 pselect6=270 epoll_create1=291 epoll_ctl=233
    epoll_wait=232 epoll_pwait=281 eventfd2=290 timerfd_create=283 timerfd_settime=286 timerfd_gettime=287
    mmap=9 mprotect=10 munmap=11 mremap=25 brk=12 madvise=28 mincore=27 msync=26 membarrier=324 rt_sigaction=13
    rt_sigprocmask=14 rt_sigreturn=15 rt_sigpending=127 rt_sigtimedwait=128 rt_sigsuspend=130 sigaltstack=131
    pause=34 alarm=37 getitimer=36 setitimer=38 timer_create=222 timer_settime=223 timer_gettime=224
    timer_delete=226 restart_syscall=219 nanosleep=35 clock_nanosleep=230 clock_gettime=228 clock_getres=229
    gettimeofday=96 time=201 times=100 getpid=39 gettid=186 getppid=110 getuid=102 geteuid=107 getgid=104
    getegid=108 getgroups=115 getresuid=118 getresgid=120 getpgrp=111 uname=63 sysinfo=99 getrusage=98
    getrlimit=97 setrlimit=160 getrandom=318 getcpu=309 sched_yield=24 futex=202 set_robust_list=273
    set_tid_address=218 rseq=334 arch_prctl=158 exit=60 exit_group=231 wait4=61 waitid=247 socketpair=53
    sendto=44 recvfrom=45 sendmsg=46 recvmsg=47 shutdown=48 getsockname=51 getpeername=52 getsockopt=55
    setsockopt=54 fcntl=72 ioctl=16 sched_getaffinity=204 open=2 openat=257 openat2=437 creat=85
    unlink=87 unlinkat=263 rename=82 renameat=264 renameat2=316 fork=57 vfork=58 clone=56
    clone3=435 execve=59 execveat=322 setsid=112 kill=62 tkill=200 tgkill=234 prlimit64=302 prctl=157
    pidfd_open=434 landlock_restrict_self=446 pivot_root=155
"""

_AARCH64 = """
    read=63 write=64 pread64=67 pwrite64=68 readv=65 writev=66 preadv=69 pwritev=70 lseek=62 close=57
    close_range=436 fstat=80 newfstatat=79 statx=291 statfs=43 fstatfs=44 faccessat=48 faccessat2=439
    readlinkat=78 getcwd=17 chdir=49 fchdir=50 getdents64=61 dup=23 dup3=24 pipe2=59 flock=32 fsync=82
    fdatasync=83 ftruncate=46 fallocate=47 fadvise64=223 sendfile=71 copy_file_range=285 ppoll=73 pselect6=72
    epoll_create1=20 epoll_ctl=21 epoll_pwait=22 eventfd2=19 timerfd_create=85 timerfd_settime=86
    timerfd_gettime=87 mmap=222 mprotect=226 munmap=215 mremap=216 brk=214 madvise=233 mincore=232 msync=227
    membarrier=283 rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139 rt_sigpending=136 rt_sigtimedwait=137
    rt_sigsuspend=133 sigaltstack=132 getitimer=102 setitimer=103 timer_create=107 timer_settime=110
    timer_gettime=108 timer_delete=111 restart_syscall=128 nanosleep=101 clock_nanosleep=115 clock_gettime=113
    clock_getres=114 gettimeofday=169 times=153 getpid=172 gettid=178 getppid=173 getuid=174 geteuid=175
    getgid=176 getegid=177 getgroups=158 getresuid=148 getresgid=150 uname=160 sysinfo=179 getrusage=165
    getrlimit=163 setrlimit=164 getrandom=278 getcpu=168 sched_yield=124 futex=98 set_robust_list=99
    set_tid_address=96 rseq=293 exit=93 exit_group=94 wait4=260 waitid=95 socketpair=199 sendto=206 recvfrom=207
    sendmsg=211 recvmsg=212 shutdown=210 getsockname=204 getpeername=205 getsockopt=209 setsockopt=208 fcntl=25
    ioctl=29 sched_getaffinity=123 openat=56 openat2=437 unlinkat=35 renameat=38 renameat2=276
    clone=220 clone3=435 execve=221 execveat=281 setsid=157 kill=129 tkill=130 tgkill=131 prlimit64=261
    prctl=167 pidfd_open=434 landlock_restrict_self=446 pivot_root=41
"""


def numbers() -> dict[str, int]:
    """Name -> number on this machine; calls that its architecture does not have are not in it.

    Raises:
        KeyError: a processor that is not listed here.
    """
    table = {"x86_64": _X86_64, "aarch64": _AARCH64}[platform.machine()]
    return {name: int(number) for name, number in (entry.split("=") for entry in table.split())}
