"""Connects the SDK's own PortalConnectSkill to a gateway with a token, and says on standard error which sessions it gets.

usage: SLUICE_TOKEN=... portal_connect.py GATEWAY_URL NAME

Runs until it is ended. `session ID NAME` is a line for each session.created, `refused CODE` for each session.error.
"""

import asyncio
import json
import os
import sys

from webagents.agents.skills.robutler.portal_connect import PortalConnectSkill


def say(*words: str) -> None:
    print(*words, file=sys.stderr, flush=True)


class Observed(PortalConnectSkill):
    """Tells what came in, after the skill itself has dealt with it."""

    async def _handle_message(self, message: str) -> None:
        await super()._handle_message(message)
        frame = json.loads(message)
        if frame.get("type") == "session.created":
            session = frame["session_id"]
            say("session", session, self._session_by_id[session])
        elif frame.get("type") == "session.error":
            say("refused", frame["error"]["code"])


async def main() -> None:
    gateway, name = sys.argv[1:]
    skill = Observed(
        {
            "portal_ws_url": gateway,
            "agents": [{"name": name, "token": os.environ["SLUICE_TOKEN"]}],
            "reconnect_delay": 1,
        }
    )
    await skill.start()
    await skill._connection_task


asyncio.run(main())
