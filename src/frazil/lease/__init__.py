"""Named leases: one of several processes does a job. Start reading at `base`.

A lease only avoids duplicate work. Correctness rests on the catalog's compare-and-swap: a holder that was
suspended may work once more before it learns that it has lost the lease.
"""

from frazil.lease.base import Lease, LeaseRenewer, open_lease

__all__ = ["Lease", "LeaseRenewer", "open_lease"]
