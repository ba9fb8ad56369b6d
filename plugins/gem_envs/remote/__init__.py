"""Remote: environments of other servers, and a server for ours."""
