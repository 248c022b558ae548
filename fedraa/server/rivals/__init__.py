"""Asynchronous rules of other papers, one in a file each."""

from fedraa.server.rivals.asyncfeded import AsyncFedED
from fedraa.server.rivals.cached import ACE, CA2FL
from fedraa.server.rivals.fadas import Fadas
from fedraa.server.rivals.fedgmr import FedGMR
from fedraa.server.rivals.ringleader import Ringleader
from fedraa.server.rivals.ringmaster import Ringmaster

__all__ = ["ACE", "CA2FL", "AsyncFedED", "Fadas", "FedGMR", "Ringleader", "Ringmaster"]
