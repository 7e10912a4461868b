"""The program of the self-test: tries what each promise forbids and says what it could do."""

PROBE = """
import ctypes, os, resource, socket, sys, time

FOLDER, PORT, OUTSIDE, MEMORY, PROCESSES = {folder!r}, {port}, {outside}, {memory}, {processes}


def attempt(promise, what, action):
    try:
        result = action()
    except (OSError, MemoryError, ValueError):
        return
    print(f"{{promise}}: {{what}} {{result if isinstance(result, str) else ''}}")


def connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(2)
        s.connect(address)


def send_from_pair():
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    pair[0].sendto(b"x", FOLDER + "/socket")


def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)


def fork_bomb():
    children = 0
    try:
        for _ in range(PROCESSES + 8):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            children += 1
    except OSError:
        pass
    if children >= PROCESSES + 8:
        return "without end"
    raise ValueError


attempt("network", "connected over TCP", lambda: connect(socket.AF_INET, ("127.0.0.1", PORT)))
attempt("network", "connected over UNIX", lambda: connect(socket.AF_UNIX, FOLDER + "/socket"))
attempt("network", "opened a UDP socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close())
attempt("network", "sent from a pair", send_from_pair)
attempt("read", "a canary", lambda: open(FOLDER + "/canary").read())
attempt("read", "/etc/passwd", lambda: bool(open("/etc/passwd").read()))
attempt("read", "a listing", lambda: bool(os.listdir(FOLDER)))
attempt("write", "a new file", lambda: open(FOLDER + "/new", "w").close())
attempt("write", "the canary", lambda: open(FOLDER + "/canary", "a").write("x"))
attempt("write", "removed the canary", lambda: os.unlink(FOLDER + "/canary"))
attempt("write", "changed its mode", lambda: os.chmod(FOLDER + "/canary", 0o600))
attempt("processes", "signalled", lambda: os.kill(OUTSIDE, 0))
attempt("processes", "signalled its parent", lambda: os.getppid() and os.kill(os.getppid(), 0))
attempt("processes", "read an environment", lambda: bool(open(f"/proc/{{OUTSIDE}}/environ", "rb").read()))
attempt("processes", "changed limits", lambda: bool(resource.prlimit(os.getppid() or OUTSIDE, resource.RLIMIT_CORE)))
attempt("sight", "saw a file", lambda: bool(os.stat(FOLDER)))
attempt("limits", "took memory", lambda: bool(bytearray(MEMORY)))
if PROCESSES > 1:
    attempt("leftovers", "", lambda: daemon() or int("x"))
attempt("limits", "forked", fork_bomb)
print("done")
"""
