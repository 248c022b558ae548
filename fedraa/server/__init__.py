"""What the server does with what comes back: asynchronous fragments, synchronous rounds."""

from fedraa.server.asynchronous import AsyncServer
from fedraa.server.base import Server
from fedraa.server.ledger import Ledger, Part, Record
from fedraa.server.rounds import RoundServer

__all__ = ["AsyncServer", "Ledger", "Part", "Record", "RoundServer", "Server"]
