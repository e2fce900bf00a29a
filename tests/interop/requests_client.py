"""Downloads URL with requests: streamed whole, by range, and resumed after it left. Fails unless it is FILE each time."""

import os
import pathlib
import sys

import requests

TIMEOUT_S = 100
LEFT_AT = 2_000_000


def main() -> None:
    url, expected = sys.argv[1], pathlib.Path(sys.argv[2]).read_bytes()
    session = requests.Session()
    session.trust_env = False
    session.headers["Authorization"] = f"Bearer {os.environ['SLUICE_TOKEN']}"

    with session.get(url, stream=True, timeout=TIMEOUT_S) as response:
        response.raise_for_status()
        etag = response.headers["ETag"]
        assert response.headers["Accept-Ranges"] == "bytes"
        assert int(response.headers["Content-Length"]) == len(expected)
        assert b"".join(response.iter_content(65536)) == expected

    head = session.head(url, timeout=TIMEOUT_S)
    assert head.status_code == 200 and head.headers["ETag"] == etag
    assert int(head.headers["Content-Length"]) == len(expected)

    response = session.get(url, headers={"Range": "bytes=1000-1999"}, timeout=TIMEOUT_S)
    assert response.status_code == 206
    assert response.headers["Content-Range"] == f"bytes 1000-1999/{len(expected)}"
    assert response.content == expected[1000:2000]

    got = b""
    with session.get(url, stream=True, timeout=TIMEOUT_S) as response:
        for piece in response.iter_content(65536):
            got += piece
            if len(got) >= LEFT_AT:
                break
    resume = {"Range": f"bytes={len(got)}-", "If-Range": etag}
    response = session.get(url, headers=resume, timeout=TIMEOUT_S)
    assert response.status_code == 206
    assert got + response.content == expected

    response = session.get(url, headers={"Range": f"bytes={len(expected)}-"}, timeout=TIMEOUT_S)
    assert response.status_code == 416
    assert response.headers["Content-Range"] == f"bytes */{len(expected)}"


main()
