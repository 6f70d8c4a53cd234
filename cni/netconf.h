/* What this program itself reads in the network configuration; the agent reads the rest. */
#ifndef K8S_RDMA_NETCONF_H
#define K8S_RDMA_NETCONF_H

#include <sys/un.h>

#include "cni_error.h"

#define SOCKET_NAME "/cni.sock"
#define MARKER_DIRECTORY "/attachments"
#define EXCLUSIVE_MARKER "/exclusive-devices"
#define CLAIMS_DIRECTORY "/claims"

/* With SOCKET_NAME behind it, it still fits a socket's address; NUL included. */
enum { RUN_DIR_SIZE = sizeof ((struct sockaddr_un *)0)->sun_path - (sizeof SOCKET_NAME - 1) };

/* What the pod's annotations say. UNKNOWN: the runtime did not deliver them. */
enum wish { WISH_UNKNOWN, WISH_NOTHING, WISH_SOMETHING };

/* cni_version: a JSON string as it stands, absent while nothing is read. prev_result: an object as it stands,
 * absent when not chained. delegate: whether there is one, and so every pod's network is the agent's doing.
 * only_plugin: whether this is its network's only plugin for certain: there is a delegate, or emptyResult.
 * exclusive_devices: whether it says that pods may hold some, be the agent's marker there or not yet. */
struct netconf {
    struct span cni_version;
    struct span prev_result;
    bool delegate;
    bool only_plugin;
    bool exclusive_devices;
    enum wish wish;
    uint32_t timeout_ms;
    char run_dir[RUN_DIR_SIZE];
};

/* What holds before anything is read. */
void netconf_init(struct netconf *conf);

/* Reads one document; the spans point into it. cni_version is set before anything that can fail later. */
bool netconf_read(struct netconf *conf, struct span text, struct cni_error *error);

#endif
