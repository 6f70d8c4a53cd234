/* Errors as the runtime reads them (CNI specification 1.1.0, section 5 "Result types", "Error"). */
#ifndef K8S_RDMA_CNI_ERROR_H
#define K8S_RDMA_CNI_ERROR_H

#include "json.h"

/* CNI_NOT_AVAILABLE: of STATUS alone, "the plugin is not available (i.e. cannot service ADD requests)". */
enum cni_code {
    CNI_INCOMPATIBLE_VERSION = 1,
    CNI_INVALID_ENVIRONMENT = 4,
    CNI_IO_FAILURE = 5,
    CNI_DECODING_FAILURE = 6,
    CNI_INVALID_NETWORK_CONFIG = 7,
    CNI_TRY_AGAIN_LATER = 11,
    CNI_NOT_AVAILABLE = 50,
};

/* msg: one line that an operator can act on. details: more, may be empty. */
struct cni_error {
    enum cni_code code;
    char msg[1024];
    char details[256];
};

/* Fills in the error; always false, so that a function may end with it. */
bool fail(struct cni_error *error, enum cni_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds what strerror(3) says of `number` to the details, after the name of the call that failed. */
void explain(struct cni_error *error, const char *call, int number);

/* The error as JSON; the bytes last as long as the program. */
struct span error_document(const struct cni_error *error, const char *cni_version);

#endif
