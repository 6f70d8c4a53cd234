/* The hook that lets a container lock memory, by which RDMA programs that are not root register it. */
#ifndef K8S_RDMA_MEMLOCK_H
#define K8S_RDMA_MEMLOCK_H

/* Raises RLIMIT_MEMLOCK of the process that the runtime is making a container of, and never lowers it.
 *
 * Arguments: `memlock`, an amount in bytes or `unlimited`, and optionally `required`: without it, a limit that
 * cannot be raised is said on standard error and is no failure, which would be the container's.
 * Standard input: the container's state (OCI runtime specification 1.2, "State"), of which `pid` is read.
 * The exit status of the program. */
int memlock_hook(int argc, char **argv);

#endif
