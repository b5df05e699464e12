"""Named leases: of several processes that could do a job, one does it. Start reading at `base`.

A lease saves work and nothing else. Correctness rests on the catalog's compare-and-swap: a holder that was
stopped and wakes up may do something once more before it learns that it has lost.
"""

from frazil.lease.base import Keeper, Lease, open_lease

__all__ = ["Keeper", "Lease", "open_lease"]
