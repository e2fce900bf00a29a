"""Connects the SDK's own PortalConnectSkill to a gateway, and says on standard error which sessions it gets.

usage: SLUICE_TOKEN=... portal_connect.py GATEWAY_URL NAME   with a token
       portal_connect.py GATEWAY_URL NAME                    signing, with a key set served on 127.0.0.2

Runs until it is ended. `session ID NAME` is a line for each session.created, `refused CODE MESSAGE` for each
session.error. When it signs, `agent URL` comes first.
"""

import asyncio
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
            say("refused", frame["error"]["code"], frame["error"]["message"])


def serve_key_set() -> dict:
    """Serves the set of a new key, and returns what the skill signs with."""
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from webagents.crypto.http_signature import SigningKey

    # The signer itself refuses 127.0.0.1, and an http URL without this.
    os.environ["ROBUTLER_AGENT_URL_ALLOW_PRIVATE"] = "1"
    key = SigningKey.from_private_key(ed25519.Ed25519PrivateKey.generate())

    class KeySet(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/agents/mini/.well-known/jwks.json" else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"keys": [key.public_jwk()]}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.2", 0), KeySet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.2:{server.server_port}/agents/mini"
    say("agent", url)
    return {"signing_keys": [key], "agent_url": url}


async def main() -> None:
    gateway, name = sys.argv[1:]
    token = os.environ.get("SLUICE_TOKEN", "")
    config = {
        "portal_ws_url": gateway,
        "agents": [{"name": name, "token": token}],
        "reconnect_delay": 1,
    }
    skill = Observed(config if token else config | serve_key_set())
    await skill.start()
    await skill._connection_task


asyncio.run(main())
