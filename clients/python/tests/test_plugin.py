"""The plugin of pytest, by its own fixture."""

import pytest


def test_assertions(duewheel_server):
    client = duewheel_server.client
    client.enqueue("close", json={"order": 42}, delay="48h", key="order-42", headers={"a": "b"})
    found = duewheel_server.assert_enqueued("close", key="order-42", json={"order": 42}, due_in="48h", headers={"a": "b"}, state="scheduled")
    assert found.key == "order-42"
    duewheel_server.assert_enqueued("close", count=1)
    duewheel_server.assert_not_enqueued("close", key="order-43")
    duewheel_server.assert_not_enqueued("other")
    with pytest.raises(AssertionError, match=r"0 messages in 'close' with key='order-43'"):
        duewheel_server.assert_enqueued("close", key="order-43")
    with pytest.raises(AssertionError, match="1 messages in 'close'"):
        duewheel_server.assert_not_enqueued("close", due_in="48h")
    with pytest.raises(AssertionError):
        duewheel_server.assert_enqueued("close", due_in="47h")


def test_time_passes_at_once(duewheel_server):
    client = duewheel_server.client
    client.enqueue("close", "x", delay="48h")
    duewheel_server.advance("47h")
    assert client.reserve("close") == []
    duewheel_server.assert_enqueued("close", due_in="1h")
    duewheel_server.advance("1h")
    assert [it.lateness_ms for it in client.reserve("close")] == [0]


def test_a_missing_program_is_named(pytester, monkeypatch):
    monkeypatch.delenv("DUEWHEEL_BIN", raising=False)
    monkeypatch.setenv("PATH", "")
    pytester.makepyfile("def test_it(duewheel_server): pass")
    pytester.runpytest("-p", "duewheel.pytest_plugin").stdout.fnmatch_lines(["*there is no program duewheel: set DUEWHEEL_BIN*"])
