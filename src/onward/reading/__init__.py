"""Reading samples, in this process or in worker processes. Imports little, so that a worker starts fast."""
