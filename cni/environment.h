/* The CNI_* variables (CNI specification 1.1.0, section 2 "Parameters"). */
#ifndef K8S_RDMA_ENVIRONMENT_H
#define K8S_RDMA_ENVIRONMENT_H

#include "cni_error.h"

enum verb { VERB_UNKNOWN, ADD, DEL, CHECK, STATUS, GC, VERSION };

/* A variable's value; empty when it is not set. */
const char *variable(const char *name);

/* What CNI_COMMAND says. */
bool read_verb(enum verb *verb, struct cni_error *error);

/* Copies the pod's UID from CNI_ARGS, with its NUL. False where there is none that can name a file. */
bool pod_uid(char *out, size_t room);

/* Whether what the verb needs of the container's variables is set, and its ID is one: it becomes a file name. */
bool check_variables(enum verb verb, struct cni_error *error);

/* Copies the variables, each with its NUL; `size` says how many bytes. */
bool copy_variables(unsigned char *out, size_t room, size_t *size, struct cni_error *error);

#endif
