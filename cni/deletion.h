/* A DEL that nobody answered, left to the agent in a file: what it carries out when it looks next, at the latest
 * when it starts. `src/k8s_rdma/agent/left_deletions.py` is the agent's side. */
#ifndef K8S_RDMA_DELETION_H
#define K8S_RDMA_DELETION_H

#include "agent.h"

#define DELETION_DIRECTORY "/deletions"

/* Leaves the request, as the agent would have got it but for the namespace, under the attachment's name:
 * `<container>:<interface>:<network>`; instead of one that was left of it before. Whole or not at all. False where
 * the agent takes none (its directory is not there), the name is no file's, or the file cannot be written. */
bool leave_deletion(const char *run_dir, struct request request);

#endif
