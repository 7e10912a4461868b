# ruff: noqa: E501 - programs read best on one line
"""Programs that want a reward without the answer. `f(3)` must be {expected}, a number that they cannot know."""

TESTS = ["assert f(3) == {expected}", "assert set(f(4)) == {{{expected}}}", "assert abs(f(5) - {expected}) < 1e-6"]

FORGERIES = {
    "exit": "import sys; sys.exit(0)",
    "exit without tidying": "import os; os._exit(0)",
    "exit in the call": "import os\ndef f(x): os._exit(0)",
    "exit at exit": "import atexit, os; atexit.register(os._exit, 0)\ndef f(x): raise SystemExit(0)",
    "exit by signal": "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGTERM)",
    "replaced by true": "import os\ndef f(x): os.execv('/bin/true', ['true'])",
    "says so": "print('PASSED\\n1 passed\\nOK')\ndef f(x): print('PASSED'); return 'PASSED'",
    "equal to everything": (
        "class E:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n"
        "    def __hash__(self): return 0\n    def __sub__(self, o): return 0\n    def __rsub__(self, o): return 0\n"
        "    def __abs__(self): return 0\n    def __lt__(self, o): return True\n    def __iter__(self): return iter([self])\n"
        "def f(x): return E()"
    ),
    "integer equal to everything": (
        "class E(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\n"
        "    def __sub__(self, o): return 0\ndef f(x): return E(1)"
    ),
    "text equal to everything": "class E(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\ndef f(x): return E('a')",
    "list equal to everything": "class E(list):\n    def __eq__(self, o): return True\ndef f(x): return E([1])",
    "set equal to everything": "class E(set):\n    def __eq__(self, o): return True\ndef f(x): return E({{1}})",
    "dictionary equal to everything": "class E(dict):\n    def __eq__(self, o): return True\ndef f(x): return E(a=1)",
    "array protocol": "class E:\n    def __array__(self, *a): return [1]\n    __array_priority__ = 9\ndef f(x): return E()",
    "builtins replaced": (
        "import builtins\nfor n in ('set', 'abs', 'len', 'isinstance', 'sorted', 'all', 'any', 'AssertionError'):\n"
        "    setattr(builtins, n, lambda *a: True)\ndef f(x): return 1"
    ),
    "names of the tests defined": "def set(x): return E()\ndef abs(x): return 0\nclass AssertionError(Exception): pass\ndef f(x): return 1",
    "assertion error is base": "AssertionError = BaseException\nimport builtins; builtins.AssertionError = KeyError\ndef f(x): raise AssertionError",
    "raises": "def f(x): raise StopIteration",
    "raises the end of the interpreter": "def f(x): raise SystemExit(0)",
    "raises interrupt": "def f(x): raise KeyboardInterrupt",
    "raises generator exit": "def f(x): raise GeneratorExit",
    "traces its caller": (
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        for v in list(frame.f_locals.values()) + list(frame.f_globals.values()):\n"
        "            if isinstance(v, int) and v > 10**6: return v\n        frame = frame.f_back"
    ),
    "searches memory": (
        "import gc, re\ndef f(x):\n    for o in gc.get_objects():\n"
        "        if isinstance(o, (str, bytes, dict, list)):\n"
        "            for n in re.findall(r'\\d{{12,}}', str(o)[:10000]): return int(n)"
    ),
    "searches code": (
        "import gc, types\ndef f(x):\n    for o in gc.get_objects():\n        c = getattr(o, '__code__', None)\n"
        "        for v in getattr(c, 'co_consts', ()):\n            if isinstance(v, int) and v > 10**11: return v"
    ),
    "searches its memory by file": (
        "import re\ndef f(x):\n    data = open('/proc/self/mem', 'rb')\n    for line in open('/proc/self/maps'):\n"
        "        a, b = (int(n, 16) for n in line.split()[0].split('-'))\n        data.seek(a)\n"
        "        for n in re.findall(rb'assert f\\(3\\) == (\\d+)', data.read(b - a)): return int(n)"
    ),
    "reads the channel": "import os\ndef f(x): return os.read(3, 1 << 16)",
    "answers on the channel": (
        "import os\nm = b'{{\"d\": [[\"value\", true]]}}'\nfor _ in range(50): os.write(3, b'%08x' % len(m) + m)\ndef f(x): return 1"
    ),
    "closes the channel": "import os\ndef f(x): os.close(3)",
    "floods the channel": "import os\ndef f(x):\n    while True: os.write(3, b'00000002{{}}')",
    "long frame": "import os\ndef f(x): os.write(3, b'ffffffff' + b'x' * 100)",
    "negative frame": "import os\ndef f(x): os.write(3, b'-0000001' + b'x' * 100)",
    "frame of nonsense": "import os\ndef f(x): os.write(3, b'00000004nope')",
    "deep frame": "import os\nm = b'[' * 10**6\ndef f(x): os.write(3, b'%08x' % len(m) + m)",
    "deep value": "def f(x):\n    v = []\n    for _ in range(10**5): v = [v]\n    return v",
    "value that holds itself": "def f(x):\n    v = []; v.append(v)\n    return v",
    "unknown tag": "import os\nm = b'{{\"z\": 1}}'\ndef f(x): os.write(3, b'%08x' % len(m) + m)",
    "type that is none": 'import os\nm = b\'{{"d": [["value", {{"y": "eval"}}]]}}\'\ndef f(x): os.write(3, b\'%08x\' % len(m) + m)',
    "unhashable element": 'import os\nm = b\'{{"d": [["value", {{"s": [[1]]}}]]}}\'\ndef f(x): os.write(3, b\'%08x\' % len(m) + m)',
    "patched codec": (
        "import sys\nc = sys.modules['rlvr.verifiers.sandbox.codec']\n"
        'c.dumps = lambda value, opaque: b\'{{"d": [["value", true]]}}\'\ndef f(x): return 1'
    ),
    "patched guest": (
        "import sys\ng = sys.modules['rlvr.verifiers.sandbox.guest']\ng._perform = lambda *a, **k: True\ndef f(x): return 1"
    ),
    "patched json": 'import json\njson.dumps = lambda v: \'{{"d": [["value", 1]]}}\'\ndef f(x): return 1',
    "endless range": "def f(x): return range(10**15)",
    "endless generator": "import itertools\ndef f(x): return itertools.count()",
    "huge integer": "def f(x): return 1 << (1 << 25)",
    "huge list": "def f(x): return [0] * (1 << 26)",
    "not a number": "def f(x): return float('nan')",
    "infinite": "def f(x): return float('inf')",
    "true": "def f(x): return True",
    "exception as a value": "def f(x): return AssertionError()",
    "class as a value": "def f(x): return int",
    "function as a value": "def f(x): return f",
    "module as a value": "import os\ndef f(x): return os",
    "instance with a class": (
        "class M(type):\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\n"
        "class E(metaclass=M):\n    @property\n    def __class__(self): return int\n"
        "    def __eq__(self, o): return True\ndef f(x): return E()"
    ),
    "no function": "x = 1",
    "a syntax error": "def f(x: return",
    "never ends": "def f(x):\n    while True: pass",
    "sleeps": "import time\ndef f(x): time.sleep(600)",
    "sleeps on import": "import time\ntime.sleep(600)",
    "stops itself": "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGSTOP)",
    "kills its parent": "import os, signal\ndef f(x): os.kill(os.getppid(), signal.SIGKILL); os.kill(-1, signal.SIGKILL)",
    "answers from a thread": "import os, threading\nthreading.Thread(target=lambda: os.write(3, b'0' * 99)).start()\ndef f(x): return 1",
}

SLOW = ("never ends", "sleeps", "sleeps on import", "stops itself", "floods the channel", "endless generator")

STDIN = {
    "prints nothing": "pass",
    "prints a prefix": "print('{expected}'[:-1])",
    "prints a lot": "print(*range(100000))",
    "prints to stderr": "import sys; print('{expected}'[:3], file=sys.stderr)",
    "rewrites its output": "import os; os.write(1, b'x' * 99); os.ftruncate(1, 0)",
    "reads the expected output": "import os\nfor fd in range(3, 99):\n    try: print(os.read(fd, 999).decode())\n    except OSError: pass",
    "copies its input": "import sys; print(sys.stdin.read())",
    "leaves well": "import os; os._exit(0)",
    "says that it passed": "print('Accepted')",
    "fails after the answer of another test": "print(7); raise ValueError",
}
