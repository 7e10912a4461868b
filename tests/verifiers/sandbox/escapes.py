# ruff: noqa: E501 - programs read best on one line
"""Programs that try to get out of a sandbox. What each must not do is watched from outside (`watch.py`).

`{folder}` holds a canary, a file `secret` and two sockets; `{port}` is a listening TCP and UDP port of this machine;
`{abstract}` an abstract socket; `{victim}` another process of the user; `{outside}` the process that asks.
"""

NETWORK = {
    "tcp": "import socket; socket.create_connection(('127.0.0.1', {port}), 2).send(b'x')",
    "tcp non-blocking": "import socket; s = socket.socket(); s.setblocking(False); s.connect_ex(('127.0.0.1', {port}))",
    "tcp over IPv6": "import socket; socket.create_connection(('::ffff:127.0.0.1', {port}), 2)",
    "udp": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
    "unix stream": "import socket; s = socket.socket(socket.AF_UNIX); s.connect({folder!r} + '/stream')",
    "unix datagram": (
        "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b'x', {folder!r} + '/datagram')"
    ),
    "datagram of a pair": (
        "import socket; a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); "
        "a.sendto(b'x', {folder!r} + '/datagram')"
    ),
    "abstract socket": "import socket; s = socket.socket(socket.AF_UNIX); s.connect({abstract!r})",
    "abstract datagram of a pair": (
        "import socket; a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', {abstract!r} + 'd')"
    ),
    "own server": (
        "import socket\ns = socket.socket(); s.bind(('0.0.0.0', {port} + 1 if {port} < 65535 else 1024)); s.listen()\n"
        "import os; os.write(1, b'ESCAPED')"
    ),
    "urllib": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/', timeout=2)",
    "raw system call": (
        "import ctypes, struct; c = ctypes.CDLL(None); fd = c.socket(2, 1, 0)\n"
        "c.connect(fd, struct.pack('!2sHI8x', b'\\x02\\x00', {port}, 0x7f000001), 16)"
    ),
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).bind((0, 0)); print('ESCAPED')",
    "io_uring": "import ctypes; print('ESCAPED' if ctypes.CDLL(None).syscall(425, 8, bytes(200)) >= 0 else '')",
    "32-bit system calls": (
        "import ctypes, mmap\n"
        "code = bytes.fromhex('b814000000cd80c3')  # getpid by int 0x80\n"
        "m = mmap.mmap(-1, 4096, prot=7); m.write(code)\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
        "print('ESCAPED' if f() > 0 else '')"
    ),
}

READING = {
    "canary": "print(open({folder!r} + '/secret').read())",
    "canary by descriptor of its folder": (
        "import os; d = os.open({folder!r}, os.O_PATH); print(os.read(os.open('secret', 0, dir_fd=d), 99))"
    ),
    "canary by symbolic link": "import os; os.symlink({folder!r} + '/secret', 'link'); print(open('link').read())",
    "canary by hard link": "import os; os.link({folder!r} + '/secret', 'link'); print(open('link').read())",
    "canary by rename": "import os; os.rename({folder!r} + '/secret', 'mine'); print(open('mine').read())",
    "canary by dots": "print(open('../' * 20 + {folder!r} + '/secret').read())",
    "canary by mmap": (
        "import mmap, os; f = os.open({folder!r} + '/secret', os.O_RDONLY); print(mmap.mmap(f, 0, prot=1)[:])"
    ),
    "canary by exec": "import os; os.execv('/bin/cat', ['cat', {folder!r} + '/secret'])",
    "canary by subprocess": "import subprocess; print(subprocess.check_output(['cat', {folder!r} + '/secret']))",
    "canary by chroot": "import os; os.chroot({folder!r}); print(open('/secret').read())",
    "canary by mount": (
        "import ctypes, os; c = ctypes.CDLL(None); c.unshare(0x10020000); "
        "c.mount({folder!r}.encode(), b'.', b'', 4096, None); print(open('secret').read())"
    ),
    "canary as a module": "import sys; sys.path.insert(0, {folder!r}); import canary_module; print(canary_module.TOKEN)",
    "canary by handle": (
        "import ctypes, os, struct; c = ctypes.CDLL(None)\n"
        "h = ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128)); m = ctypes.c_int()\n"
        "c.name_to_handle_at(-100, ({folder!r} + '/secret').encode(), h, ctypes.byref(m), 0)\n"
        "print(os.read(c.open_by_handle_at(-100, h, 0), 99))"
    ),
    "passwords": "print('ESCAPED' if 'root' in open('/etc/passwd').read() else '')",
    "home": "import os; print('ESCAPED' if os.listdir('/root') or os.listdir('/home') else '')",
    "environment of its parents": (
        "import os\nfor pid in (os.getppid(), 1, {outside}):\n"
        "    try: print(open(f'/proc/{{pid}}/environ', 'rb').read())\n    except OSError as e: print(e)"
    ),
    "own environment": "import os; print(os.environ); print(open('/proc/self/environ').read())",
    "memory of its parent": (
        "import os\nfor pid in (os.getppid(), 1, {outside}):\n"
        "    try:\n        open(f'/proc/{{pid}}/mem', 'rb'); print('ESCAPED')\n    except OSError as e: print(e)"
    ),
    "process_vm_readv": (
        "import ctypes, os; c = ctypes.CDLL(None, use_errno=True); b = ctypes.create_string_buffer(8)\n"
        "class V(ctypes.Structure): _fields_ = [('p', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
        "l = V(ctypes.addressof(b), 8); r = V(ctypes.addressof(b), 8)\n"
        "for pid in (os.getppid(), {outside}):\n"
        "    if c.process_vm_readv(pid, ctypes.byref(l), 1, ctypes.byref(r), 1, 0) > 0: print('ESCAPED')"
    ),
    "descriptors left open": (
        "import os\nfor fd in range(4, 1024):\n"
        "    try: os.fstat(fd)\n    except OSError: continue\n    print('ESCAPED', fd)"
    ),
    "command line of its parent": (
        "import os\nfor pid in (os.getppid(), {outside}):\n"
        "    try: print('ESCAPED', open(f'/proc/{{pid}}/cmdline').read())\n    except OSError as e: print(e)"
    ),
}

WRITING = {
    "new file": "open({folder!r} + '/new', 'w').write('x')",
    "append": "open({folder!r} + '/secret', 'a').write('x')",
    "truncate": "import os; os.truncate({folder!r} + '/secret', 0)",
    "open with truncation": "import os; os.open({folder!r} + '/secret', os.O_RDONLY | os.O_TRUNC)",
    "unlink": "import os; os.unlink({folder!r} + '/secret')",
    "rename": "import os; os.rename({folder!r} + '/secret', {folder!r} + '/moved')",
    "mkdir": "import os; os.mkdir({folder!r} + '/folder')",
    "symlink": "import os; os.symlink('/', {folder!r} + '/link')",
    "fifo": "import os; os.mkfifo({folder!r} + '/fifo')",
    "chmod": "import os; os.chmod({folder!r} + '/secret', 0o777)",
    "utime": "import os; os.utime({folder!r} + '/secret', (0, 0))",
    "chown": "import os; os.chown({folder!r} + '/secret', os.getuid(), -1)",
    "extended attribute": "import os; os.setxattr({folder!r} + '/secret', 'user.x', b'x')",
    "unix socket": "import socket; socket.socket(socket.AF_UNIX).bind({folder!r} + '/bound')",
    "shared memory": "import os; os.close(os.open('/dev/shm/rlvr-escape', os.O_CREAT | os.O_RDWR)); print('ESCAPED')",
    "System V memory": "import ctypes; print('ESCAPED' if ctypes.CDLL(None).shmget(77, 4096, 0o1666) >= 0 else '')",
    "bytecode of the interpreter": (
        "import os; open(os.path.join(os.path.dirname(os.__file__), 'rlvr_escape.py'), 'w'); print('ESCAPED')"
    ),
    "temporary folder": "open('/tmp/rlvr-escape', 'w').write('x')",
}

PROCESSES = {
    "signal": "import os, signal; os.kill({victim}, signal.SIGKILL)",
    "signal its parent": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "signal everyone": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "signal by pidfd": (
        "import os, signal; signal.pidfd_send_signal(os.pidfd_open({victim}), signal.SIGKILL); print('ESCAPED')"
    ),
    "signal by thread": "import ctypes; print('ESCAPED' if ctypes.CDLL(None).syscall(200, {victim}, 9) == 0 else '')",
    "signal by owner of a descriptor": (
        "import fcntl, os, socket; a, b = socket.socketpair(); fcntl.fcntl(a, 10, 9); fcntl.fcntl(a, 8, {victim}); "
        "fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC); b.send(b'x'); print('ESCAPED')"
    ),
    "limits of another": "import resource; resource.prlimit({victim}, resource.RLIMIT_NOFILE, (0, 0))",
    "priority of another": "import os; os.setpriority(os.PRIO_PROCESS, {victim}, 19)",
    "trace another": "import ctypes; print('ESCAPED' if ctypes.CDLL(None).ptrace(16, {victim}, 0, 0) == 0 else '')",
    "trace its parent": (
        "import ctypes, os; print('ESCAPED' if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 else '')"
    ),
    "more privileges": "import os; os.setuid(0); print('ESCAPED')",
    "user namespace": "import ctypes; print('ESCAPED' if ctypes.CDLL(None).unshare(0x10000000) == 0 else '')",
    "clone into a namespace": (
        "import ctypes; r = ctypes.CDLL(None).syscall(56, 0x10000000 | 17, 0, 0, 0, 0)\n"
        "if r == 0:\n    import time; time.sleep(60)\nprint('ESCAPED' if r > 0 else '')"
    ),
    "daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)\n"
        "    os._exit(0)"
    ),
    "child that ignores signals": (
        "import os, signal, time\nif os.fork() == 0:\n"
        "    for s in range(1, 65):\n        try: signal.signal(s, signal.SIG_IGN)\n        except Exception: pass\n"
        "    time.sleep(60)"
    ),
    "fork bomb": (
        "import os\nn = 0\nwhile n < 500:\n"
        "    try:\n        if os.fork() == 0:\n            while True: pass\n        n += 1\n    except OSError: break"
    ),
    "fork chain": (
        "import os\nwhile True:\n    try: pid = os.fork()\n    except OSError: break\n    if pid: os._exit(0)"
    ),
    "vfork by system call": "import ctypes; print('ESCAPED' if ctypes.CDLL(None).syscall(57) > 500000000 else '')",
    "thread bomb": (
        "import threading, time\nn = 0\nthreading.stack_size(32768)\ntry:\n    while n < 2000:\n"
        "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1\nexcept RuntimeError: pass\n"
        "print('ESCAPED' if n >= 2000 else '')\nimport os; os._exit(0)"
    ),
    "parent-death signal": "import ctypes; print('ESCAPED' if ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0 else '')",
}

RESOURCES = {
    "memory": "x = bytearray(4 << 30)",
    "memory by mmap": "import mmap; m = mmap.mmap(-1, 4 << 30)",
    "raised limit": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)); print('ESCAPED')",
    "file": "f = open('big', 'wb')\nwhile True: f.write(bytes(1 << 20))",
    "many files": "i = 0\nwhile True:\n    i += 1\n    open(f'f{{i}}', 'wb').write(bytes(1 << 20))",
    "output": "import sys\nwhile True: sys.stdout.write('x' * (1 << 20))",
    "errors": "import sys\nwhile True: sys.stderr.write('x' * (1 << 20))",
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(600)",
    "loop without signals": (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except Exception: pass\n"
        "while True: pass"
    ),
    "slow exit": "import atexit, time; atexit.register(time.sleep, 600)",
    "descriptors": "import os\nfds = []\nwhile True: fds.append(os.dup(0))",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\nf = lambda n: f(n + 1)\nf(0)",
    "kernel keys": (
        "import ctypes; print('ESCAPED' if ctypes.CDLL(None).syscall(248, b'user', b'k', b'v', 1, -2) > 0 else '')"
    ),
    "null bytes": "print(1)\0print(2)",
    "lone surrogate": "print('\udc80')",
    "crash": "import ctypes; ctypes.string_at(0)",
    "huge integer": "print(len(str(9 ** 9 ** 9)))",
}

ESCAPES = {
    f"{group}: {name}": program
    for group, programs in (
        ("network", NETWORK),
        ("reading", READING),
        ("writing", WRITING),
        ("processes", PROCESSES),
        ("resources", RESOURCES),
    )
    for name, program in programs.items()
}
