"""`shoal token`: who may ask what over HTTP."""

import time
from pathlib import Path

from aggregator.http.tokens import Role, TokenFile
from shoal.printing import print_json
from shoal.times import minute_of, seconds_of


def new(folder: Path, name: str, role: Role, expires: str) -> dict[str, str]:
    """Carry out `shoal token new`."""
    made = TokenFile(folder).new(name, role, seconds_of(expires, "--expires") if expires else None)
    print(made)
    return {"token": str(made), "name": name, "role": role}


def list_all(folder: Path, as_json: bool) -> None:
    """Carry out `shoal token list`."""
    if as_json:
        print_json(TokenFile(folder).all())
        return
    for held in TokenFile(folder).all():
        until = "for ever" if held.expires_at_s is None else f"until {minute_of(held.expires_at_s)}"
        over = "  over" if held.is_over(time.time()) else ""
        print(f"{held.name:<20}  {held.role:<8}  made {minute_of(held.made_at_s)}  {until}{over}")


def revoke(folder: Path, name: str) -> None:
    """Carry out `shoal token revoke`."""
    TokenFile(folder).revoke(name)
    print(f"token {name}: revoked")
