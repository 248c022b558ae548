"""What the server does with what comes back: asynchronous fragments, synchronous rounds."""

from fedraa.server.asynchronous import AsyncServer
from fedraa.server.base import Server
from fedraa.server.ledger import Ledger, Record
from fedraa.server.rounds import RoundServer

__all__ = ["AsyncServer", "Ledger", "Record", "RoundServer", "Server"]
