"""Passwords are checked one at a time, and who guesses waits behind nobody but themselves."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable

import pytest

from pyxbroker.auth import basic
from pyxbroker.auth.htpasswd import Check
from pyxbroker.auth.password_checks import NICENESS, PasswordChecks
from pyxbroker.auth.provider import CLIENT_ADDRESS, Identity, NotChecked
from pyxbroker.base.errors import AuthenticationError
from test_passwords import APR1, BCRYPT, SHA, provider
from web_client import until


class Gate:
    """A check that waits until it may go on; the order in which it was called."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.may_go = threading.Semaphore(0)

    def check(self, password: bytes) -> bool:
        self.may_go.acquire()
        self.seen.append(password)
        return password.startswith(b"right")

    def open(self) -> None:
        self.may_go.release(1000)


def run(
    scenario: Callable[[Gate, PasswordChecks], Awaitable[None]], waiting_max: int = 100
) -> Gate:
    gate = Gate()

    async def main() -> None:
        try:
            await scenario(gate, PasswordChecks(waiting_max))
        finally:
            gate.open()

    asyncio.run(asyncio.wait_for(main(), 10))
    return gate


async def begin(
    checks: PasswordChecks, gate: Gate, address: str, *passwords: bytes
) -> list[asyncio.Task[bool]]:
    tasks = [asyncio.ensure_future(checks.check(address, gate.check, each)) for each in passwords]
    await asyncio.sleep(0)
    return tasks


def guesses(count: int) -> list[bytes]:
    return [b"guess %d" % number for number in range(count)]


def test_another_address_waits_for_one_check_whoever_guesses() -> None:
    async def scenario(gate: Gate, checks: PasswordChecks) -> None:
        tasks = await begin(checks, gate, "a", *guesses(50))
        tasks += await begin(checks, gate, "b", b"right")
        gate.open()
        await asyncio.gather(*tasks)

    gate = run(scenario)
    assert gate.seen.index(b"right") <= 2
    assert len(gate.seen) == 51


def test_who_has_shown_nothing_wrong_comes_before_many_who_have() -> None:
    async def scenario(gate: Gate, checks: PasswordChecks) -> None:
        gate.may_go.release(20)
        for number in range(20):
            [task] = await begin(checks, gate, f"guesser {number}", b"guess")
            await task
        tasks = []
        for number in range(20):
            tasks += await begin(checks, gate, f"guesser {number}", *guesses(3))
        tasks += await begin(checks, gate, "new", b"right 1", b"right 2")
        gate.open()
        await asyncio.gather(*tasks)

    seen = run(scenario).seen[20:]
    assert seen.index(b"right 1") <= 2 and seen.index(b"right 2") <= 3


def test_those_who_were_wrong_have_their_turns_all_the_same() -> None:
    async def scenario(gate: Gate, checks: PasswordChecks) -> None:
        gate.may_go.release(1)
        [task] = await begin(checks, gate, "mistaken", b"wrong")
        await task
        tasks = []
        for number in range(40):
            tasks += await begin(checks, gate, f"new {number}", b"right")
        tasks += await begin(checks, gate, "mistaken", b"right this time")
        gate.open()
        await asyncio.gather(*tasks)

    assert run(scenario).seen.index(b"right this time") <= 8


def test_when_too_many_wait_the_last_of_the_longest_line_gives_way() -> None:
    async def scenario(gate: Gate, checks: PasswordChecks) -> None:
        many = await begin(checks, gate, "a", *guesses(13))  # one is checked, ten wait
        few = await begin(checks, gate, "b", b"right")
        gate.open()
        found = await asyncio.gather(*many, *few, return_exceptions=True)
        refused = [at for at, each in enumerate(found) if isinstance(each, NotChecked)]
        assert refused == [10, 11, 12]
        assert found[-1] is True

    run(scenario, waiting_max=10)


def test_who_does_not_wait_any_more_holds_up_nobody() -> None:
    async def scenario(gate: Gate, checks: PasswordChecks) -> None:
        tasks = await begin(checks, gate, "a", b"1", b"2", b"3")
        tasks[1].cancel()
        gate.open()
        assert await tasks[2] is False
        tasks = await begin(checks, gate, "a", b"4", b"right")
        assert await asyncio.gather(*tasks) == [False, True]

    assert run(scenario).seen == [b"1", b"3", b"4", b"right"]


def test_a_check_whose_asker_has_gone_keeps_the_thread_and_is_a_guess_all_the_same() -> None:
    async def scenario(gate: Gate, checks: PasswordChecks) -> None:
        tasks = await begin(checks, gate, "a", b"guess", b"2")
        await asyncio.sleep(0.01)
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        assert checks._thread._work_queue.qsize() == 0  # the next one waits for its turn
        gate.may_go.release(1)
        await until(lambda: "a" in checks._suspects)
        gate.open()
        assert await tasks[1] is False

    assert run(scenario).seen == [b"guess", b"2"]


@pytest.mark.parametrize(("password", "is_told"), [(b"guess", True), (b"right", False)])
def test_who_goes_while_its_password_is_checked_is_told_that_it_is_wrong_and_no_more(
    password: bytes, is_told: bool
) -> None:
    async def scenario(gate: Gate, checks: PasswordChecks) -> None:
        [task] = await begin(checks, gate, "a", password)
        for _ in range(3):
            await asyncio.sleep(0.01)
            task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        gate.open()
        [found] = await asyncio.gather(task, return_exceptions=True)
        assert found is False if is_told else isinstance(found, asyncio.CancelledError)
        assert await checks.check("a", gate.check, b"right")

    assert run(scenario).seen == [password, b"right"]


def test_a_defect_of_a_check_is_told_whoever_has_gone() -> None:
    def broken(password: bytes) -> bool:
        may_fail.wait()
        raise ZeroDivisionError("broken")

    async def scenario(gate: Gate, checks: PasswordChecks) -> None:
        task = asyncio.ensure_future(checks.check("a", broken, b"1"))
        await asyncio.sleep(0.01)
        task.cancel()
        may_fail.set()
        with pytest.raises(ZeroDivisionError):
            await task
        gate.open()
        assert await checks.check("a", gate.check, b"right")

    may_fail = threading.Event()
    run(scenario)


def test_who_gave_way_and_has_gone_had_no_turn() -> None:
    """One check at a time, also when somebody is told to go in the moment in which it goes."""

    async def scenario(gate: Gate, checks: PasswordChecks) -> None:
        tasks = await begin(checks, gate, "a", *guesses(4))  # one is checked, three wait
        tasks += await begin(checks, gate, "b", b"right")  # for whom the last of them gives way
        tasks[3].cancel()
        await asyncio.sleep(0.01)
        assert checks._thread._work_queue.qsize() == 0
        gate.open()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert tasks[3].cancelled() and tasks[4].result() is True

    assert len(run(scenario, waiting_max=3).seen) == 4


def test_what_was_wrong_once_costs_no_check_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basic, "WRONG_MAX", 2)

    async def main() -> None:
        one, seen = provider(), []

        def never(password: bytes) -> bool:
            seen.append(password)
            return False

        monkeypatch.setitem(one._users, "b", Check(never, one._slowest_check.cost))
        for password in (b"1", b"1", b"2", b"1", b"3", b"1", b"2"):
            with pytest.raises(AuthenticationError, match="invalid"):
                await one.authenticate(b"b:" + password)
        assert seen == [b"1", b"2", b"3", b"2"]
        assert len(one._wrong) == 2

    asyncio.run(main())


@pytest.mark.parametrize(("password", "is_right"), [(b"right", True), (b"wrong", False)])
def test_many_who_show_the_same_at_once_cost_one_check(
    monkeypatch: pytest.MonkeyPatch, password: bytes, is_right: bool
) -> None:
    async def main() -> None:
        one, gate = provider(), Gate()
        gate.open()
        monkeypatch.setitem(one._users, "b", Check(gate.check, one._slowest_check.cost))
        shown = [one.authenticate(b"b:" + password) for _ in range(50)]
        other = one.authenticate(b"s:secret")
        found = await asyncio.gather(*shown, other, return_exceptions=True)
        assert [isinstance(each, Identity) for each in found] == [is_right] * 50 + [True]
        assert gate.seen == [password]

    asyncio.run(main())


def test_the_line_is_that_of_the_clients_address() -> None:
    async def main() -> list[str]:
        one, networks = provider(), []
        check = one._checks.check

        async def noted(network: str, *more: object) -> bool:
            networks.append(network)
            return await check(network, *more)  # type: ignore[arg-type]

        one._checks.check = noted  # type: ignore[method-assign,assignment]
        CLIENT_ADDRESS.set("2001:db8::1")
        await one.authenticate(b"b:secret")
        return networks

    assert asyncio.run(main()) == ["2001:db8::/64"]


def test_what_waits_behind_something_wrong_waits_behind_others() -> None:
    async def scenario(gate: Gate, checks: PasswordChecks) -> None:
        tasks = []
        for number in range(10):
            tasks += await begin(checks, gate, f"guesser {number}", *guesses(5))
        gate.may_go.release(10)
        await until(lambda: len(gate.seen) == 10)
        tasks += await begin(checks, gate, "new", b"right")
        gate.open()
        await asyncio.gather(*tasks)

    assert run(scenario).seen.index(b"right") <= 12


def test_the_loop_goes_before_the_thread_that_checks() -> None:
    async def main() -> tuple[list[int], int]:
        seen: list[int] = []

        def check(password: bytes) -> bool:
            seen.append(os.getpriority(os.PRIO_PROCESS, 0))
            return True

        await PasswordChecks(1).check("a", check, b"right")
        return seen, os.getpriority(os.PRIO_PROCESS, 0)

    before = os.getpriority(os.PRIO_PROCESS, 0)
    seen, after = asyncio.run(main())
    assert after == before
    # Only there a thread has a niceness of its own.
    assert seen == [min(before + NICENESS, 19) if sys.platform == "linux" else before]


@pytest.mark.parametrize(
    ("users", "is_nice"),
    [
        (f"b:{BCRYPT}\ns:{SHA}\n", True),
        (f"b:{BCRYPT}\na:{APR1}\n", False),
        (f"a:{APR1}\n", False),
    ],
    ids=["none of apr1", "one of apr1", "apr1"],
)
def test_a_thread_that_holds_pythons_lock_is_as_urgent_as_the_loop(
    users: str, is_nice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else others of the machine could take its core, and the loop would wait for them."""
    seen: list[int] = []

    def check(password: bytes) -> bool:
        seen.append(os.getpriority(os.PRIO_PROCESS, 0))
        return True

    async def main() -> None:
        one = provider(users)
        name = next(iter(one._users))
        monkeypatch.setitem(one._users, name, Check(check, one._slowest_check.cost))
        await one.authenticate(f"{name}:secret".encode())

    before = os.getpriority(os.PRIO_PROCESS, 0)
    asyncio.run(main())
    nice = is_nice and sys.platform == "linux"
    assert seen == [min(before + NICENESS, 19) if nice else before]
