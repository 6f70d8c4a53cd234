/* The exchange with the agent on `cni.sock`, protocol version 1. `src/k8s_rdma/wire/cni_socket.py` is the
 * agent's side and says what the fields mean; all numbers are little endian. */
#ifndef K8S_RDMA_AGENT_H
#define K8S_RDMA_AGENT_H

#include "cni_error.h"

enum {
    REQUEST_HEADER_SIZE = 24,
    REPLY_HEADER_SIZE = 12,
    MAX_ENV_SIZE = 64 << 10,
    MAX_STDIN_SIZE = 8 << 20,
    MAX_STDOUT_SIZE = 8 << 20,
};

/* frame: room for the header, then env_size bytes of variables, then stdin_size bytes.
 * netns: a descriptor to send along, or -1. */
struct request {
    unsigned char *frame;
    size_t env_size;
    size_t stdin_size;
    int netns;
};

struct reply {
    struct span standard_output;
    int exit_status;
};

/* The request with its header written: what goes to the agent. deadline_ms: of CLOCK_MONOTONIC; 0 is never. */
struct span whole_frame(const struct request *request, uint64_t deadline_ms);

/* Asks the agent behind `run_dir` and waits at most `timeout_ms`. On false the error is of code 11: the
 * agent was not reached, broke off, was too slow, or speaks something else. */
bool ask_agent(const char *run_dir, uint32_t timeout_ms, struct request request, struct reply *reply,
               struct cni_error *error);

#endif
