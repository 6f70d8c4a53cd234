/* The versions of the CNI specification. */
#ifndef K8S_RDMA_VERSION_H
#define K8S_RDMA_VERSION_H

#include "environment.h"

/* Whether `asked`, a JSON string, is supported and has the verb. DEL is taken in any version: nobody's pod
 * shall hang in Terminating over the configuration of now. */
bool check_version(struct span asked, enum verb verb, struct cni_error *error);

/* The version of an error's document: the one asked for, the newest when that is not supported or not known. */
const char *error_version(struct span asked);

/* The answer to VERSION; `asked` may be absent. The bytes last as long as the program. */
struct span version_document(struct span asked);

#endif
