"""The process that reads expressions: its limits, its deaths, its secrets, and what it never does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from maxent_grpo.errors import RewardError
from maxent_grpo.rewards import math_process, math_worker
from maxent_grpo.rewards.graders import GRADERS
from maxent_grpo.rewards.math_answer import grade_math
from maxent_grpo.rewards.math_process import SHARED, MathProcess, Verdict

SLOW = "10^{10^{10}}"
needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="looks at processes through /proc")


@pytest.fixture(scope="module")
def process() -> Iterator[MathProcess]:
    process = MathProcess(cpu_seconds=0.3)
    process.ask(None, "x")
    yield process
    process.close()


def reads(process: MathProcess, number: int) -> bool:
    """Whether an expression it never saw is read and compared."""
    verdict = process.ask(f"x+{number}", f"{number}+x")
    return verdict.status == "read" and verdict.same


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ended(pid: int) -> bool:
    """Whether a process is gone within ten seconds."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("text", [SLOW, "9^{9^{9}}", "(x+1)^{10^{9}}(x+2)^{10^{9}}+" + SLOW])
def test_an_expression_that_takes_too_long_costs_its_own_verdict_only(process: MathProcess, text: str) -> None:
    pid = process.pid
    assert process.ask("2", text).status == "timeout"
    assert reads(process, 100 + len(text))
    assert process.pid == pid


@needs_proc
def test_an_expression_that_needs_too_much_memory_costs_its_own_verdict_only(process: MathProcess) -> None:
    size = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    tight = MathProcess(cpu_seconds=20, memory=size + (4 << 20))
    assert tight.ask(None, "(a+b+c+f+g+h)^{12}").status == "memory"
    assert reads(tight, 1)
    tight.close()


@pytest.mark.slow
def test_one_answer_of_many_slow_expressions_takes_no_longer_than_one() -> None:
    slow = ", ".join(f"(a+b+c+f+g+{number}h)^{{10}}" for number in range(20))
    grade_math("7", "x+1, x+2, x+3, x+4, x+5, x+6, x+7, x+8, x+9, x+10")
    asked = SHARED._number
    grade = grade_math(f"\\boxed{{{slow}}}", "x+1, x+2, x+3, x+4, x+5, x+6, x+7, x+8, x+9, x+10")
    assert grade.reason == "timeout"
    assert SHARED._number - asked < 20
    assert reads(SHARED, 7)


@needs_proc
def test_a_kill_in_the_middle_of_an_answer_costs_one_more_try(process: MathProcess) -> None:
    assert reads(process, 2)
    (child,) = children(process.pid or 0)
    os.kill(child, signal.SIGKILL)
    assert reads(process, 3)
    timer = threading.Timer(0.1, lambda: [os.kill(child, signal.SIGKILL) for child in children(process.pid or 0)])
    timer.start()
    assert process.ask("3", SLOW).status == "timeout"
    timer.join()
    assert reads(process, 4)


def test_a_process_that_was_killed_whole_is_replaced(process: MathProcess) -> None:
    pid = process.pid
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)
    assert reads(process, 5)
    assert process.pid not in (pid, None)


def test_a_process_that_falls_silent_is_given_up(process: MathProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = process.pid
    assert pid is not None
    os.killpg(pid, signal.SIGSTOP)
    monkeypatch.setattr(process, "_wall_seconds", 0.2)
    assert process.ask("x", "2x+7") == Verdict("timeout")
    monkeypatch.undo()
    assert reads(process, 6)
    assert process.pid != pid


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_program_has_a_process_of_its_own() -> None:
    assert SHARED.ask("x+1", "1+x").same
    pid = SHARED.pid
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        same = SHARED.ask("x+2", "2+x").same
        os.write(writer, f"{same} {SHARED.pid}".encode())
        SHARED.close()
        os._exit(0)
    os.waitpid(child, 0)
    same, other = os.read(reader, 100).decode().split()
    os.close(reader)
    os.close(writer)
    assert same == "True"
    assert int(other) != pid
    assert SHARED.ask("x+3", "3+x").same
    assert SHARED.pid == pid


@needs_proc
@pytest.mark.parametrize("ending", ["", "import os; os.kill(os.getpid(), 9)"])
def test_the_process_ends_with_the_program_however_that_ends(ending: str) -> None:
    program = (
        "from maxent_grpo.rewards.math_process import SHARED\n"
        "SHARED.ask(None, 'x')\n"
        "print(SHARED.pid, flush=True)\n" + ending
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == (-signal.SIGKILL if ending else 0)
    assert done.stderr == ""
    assert ended(int(done.stdout))


@needs_proc
def test_the_process_inherits_no_secrets_and_no_open_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    opened = (tmp_path / "open.txt").open("w")
    os.set_inheritable(opened.fileno(), True)
    process = MathProcess()
    process.ask(None, "x")
    (child,) = children(process.pid or 0)
    assert b"secret" not in Path(f"/proc/{child}/environ").read_bytes()
    assert "open.txt" not in "".join(os.readlink(link) for link in Path(f"/proc/{child}/fd").iterdir())
    process.close()
    opened.close()


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch seen')",
        "open('seen','w')",
        "\\text{__import__('os').system('touch seen')}",
        "\\sqrt{__import__('os').system('touch seen')}",
        "\\operatorname{__import__}('os')",
        "2+eval('3')",
        "().__class__.__base__.__subclasses__()",
        "x;import os",
        "x\nimport os\nos.system('touch seen')",
    ],
)
def test_text_that_is_code_is_never_run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not SHARED.ask("7", text).same
    assert grade_math(f"\\boxed{{{text}}}", "7").reward == 0.0
    assert list(tmp_path.iterdir()) == []


def test_sympy_is_given_numbers_to_read_and_no_other_text() -> None:
    for text in ("x", "1+1", "__import__('os')", "1e99999", "-1", "", "1" * 500, "\u0661"):
        with pytest.raises(ValueError, match="never evaluated"):
            math_worker.plain_number(text)
    assert str(math_worker.plain_number("0.5")) == "1/2"


def test_the_worker_may_start_no_process_and_write_no_file() -> None:
    for event, arguments in {
        "os.system": ("ls",),
        "subprocess.Popen": ("ls", (), None, None),
        "socket.connect": (None, None),
        "open": ("x", "w", os.O_WRONLY | os.O_CREAT),
    }.items():
        with pytest.raises(RuntimeError, match="not allowed"):
            math_worker.forbid(event, arguments)
    math_worker.forbid("open", ("x", "r", os.O_RDONLY))


def test_numbers_words_and_points_need_no_process() -> None:
    idle = MathProcess()
    for text, answer in (
        ("7", "7"),
        ("8", "7"),
        ("\\frac12", "0.5"),
        ("(1,2)", "(1,2)"),
        ("[1,2)", "(1,2)"),
        ("blue", "blue"),
    ):
        grade_math(f"\\boxed{{{text}}}", answer, idle)
    assert idle.pid is None


def test_what_many_completions_say_is_read_once() -> None:
    asked = SHARED._number
    grades = GRADERS["math"].many(["\\boxed{\\sqrt{75}}", "\\boxed{5\\sqrt{3}}"] * 64, ["5\\sqrt{3}"] * 128)
    assert [grade.reward for grade in grades] == [1.0] * 128
    assert SHARED._number - asked <= 2


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("""print('{"failed": "ImportError: No module named math_verify"}')""")
    monkeypatch.setattr(math_process, "SCRIPT", script)
    with pytest.raises(RewardError, match=r"did not start \(ImportError: No module named math_verify\).*pip install"):
        MathProcess().ask(None, "x")
