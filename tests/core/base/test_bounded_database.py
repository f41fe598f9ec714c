"""Tests of the limit on the work of statements on a database file."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from overlapscope.base.bounded_database import BoundedConnection, is_endless

SOME_WORK = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000) SELECT count(*) FROM n"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def interrupted(connection: sqlite3.Connection, statement: str) -> bool:
    try:
        connection.execute(statement).fetchall()
    except sqlite3.OperationalError as error:
        return is_endless(error)
    return False


@pytest.mark.parametrize("together", [False, True])
def test_the_limit_holds_for_each_statement_or_for_their_sum(together: bool) -> None:
    with closing(sqlite3.connect(":memory:", factory=BoundedConnection)) as connection:
        connection.bound(lambda: 0, together=together)
        assert interrupted(connection, SOME_WORK) is False
        assert any(interrupted(connection, SOME_WORK) for _ in range(5)) is together
        assert interrupted(connection, ENDLESS)
