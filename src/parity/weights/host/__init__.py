"""Files of one host: private run directories, endpoints with owners, shared memory."""
