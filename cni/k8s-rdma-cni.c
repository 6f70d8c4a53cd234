/* k8s-rdma-cni: the CNI plugin that the container runtime runs, in a few hundred lines.
 *
 * It hands what the runtime gave it to the k8s-rdma agent of the node and prints what comes back. What
 * concerns pods that want nothing of k8s-rdma it answers by itself, so that they start and stop while the
 * agent is dead. Why it is in C: docs/adr/0004-shim-in-c.md. What it is run for: CNI specification 1.1.0,
 * section 2 "Execution Protocol". */
#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"
#include "deletion.h"
#include "io.h"
#include "memlock.h"
#include "netconf.h"
#include "version.h"

/* How long the runtime may take to hand over its input, and again to take the answer; and how long STATUS
 * waits for the agent: kubelet asks every 5 s and gives up the runtime after 30. */
enum { RUNTIME_TIMEOUT_MS = 10 * 1000, STATUS_TIMEOUT_MS = 10 * 1000 };

/* Whether something of ours was ever given to the container, or is being given. UNKNOWN: the directory cannot be
 * read. */
enum marker { MARKER_UNKNOWN, MARKER_ABSENT, MARKER_PRESENT };

enum answer { ASK_AGENT, SAY_NOTHING, SAY_PREV_RESULT, SAY_VERSIONS };

/* One run of this program. The frame is filled from behind its header: first the variables, then stdin. */
struct call {
    enum verb verb;
    struct request request;
    struct netconf conf;
    struct cni_error error;
};

/* Room for the largest request and the byte that shows that stdin is larger. Untouched pages cost nothing. */
static unsigned char frame[REQUEST_HEADER_SIZE + MAX_ENV_SIZE + MAX_STDIN_SIZE + 1];

/* Appends standard input to the frame and reads it as the network configuration. VERSION may come without. */
static bool read_input(struct call *call)
{
    unsigned char *input = frame + REQUEST_HEADER_SIZE + call->request.env_size;
    ssize_t size = read_all(STDIN_FILENO, input, MAX_STDIN_SIZE + 1, now_ms() + RUNTIME_TIMEOUT_MS);
    if (size < 0) {
        explain(&call->error, "read", errno);
        return fail(&call->error, CNI_IO_FAILURE, "the network configuration cannot be read from standard input");
    }
    if (size > MAX_STDIN_SIZE)
        return fail(&call->error, CNI_DECODING_FAILURE, "the network configuration exceeds %d bytes", MAX_STDIN_SIZE);
    call->request.stdin_size = (size_t)size;
    if (size == 0 && call->verb == VERSION)
        return true;
    return netconf_read(&call->conf, (struct span){input, input + size}, &call->error);
}

static bool read_call(struct call *call)
{
    return read_verb(&call->verb, &call->error)
        && copy_variables(frame + REQUEST_HEADER_SIZE, MAX_ENV_SIZE, &call->request.env_size, &call->error)
        && read_input(call)
        && check_version(call->conf.cni_version, call->verb, &call->error)
        && check_variables(call->verb, &call->error);
}

/* Where even the agent's directory is not there, it has not run since the boot: it gave nothing to anybody,
 * and what pods had before, it takes back by itself when it starts. */
static enum marker find_marker(const char *run_dir)
{
    char path[RUN_DIR_SIZE + sizeof MARKER_DIRECTORY];
    struct stat found;
    snprintf(path, sizeof path, "%s" MARKER_DIRECTORY, run_dir);
    int directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return stat(run_dir, &found) != 0 && errno == ENOENT ? MARKER_ABSENT : MARKER_UNKNOWN;
    int status = fstatat(directory, variable("CNI_CONTAINERID"), &found, AT_SYMLINK_NOFOLLOW);
    int reason = errno;
    close(directory);
    if (status == 0)
        return MARKER_PRESENT;
    return reason == ENOENT ? MARKER_ABSENT : MARKER_UNKNOWN;
}

/* Whether pods of this node may hold devices of an exclusive resource, which are attached to them though
 * their annotations say nothing. The agent makes the file as it is configured, and leaves it when it stops. A
 * directory that is not there is an agent that has not run since the boot: then the configuration can tell. */
static bool may_hold_devices(const struct netconf *conf)
{
    char path[RUN_DIR_SIZE + sizeof EXCLUSIVE_MARKER];
    struct stat found;
    if (conf->exclusive_devices)
        return true;
    snprintf(path, sizeof path, "%s" EXCLUSIVE_MARKER, conf->run_dir);
    return stat(path, &found) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

/* Whether ResourceClaims may be prepared for the pod: the agent marks such pods before kubelet starts them,
 * and leaves the marks when it stops. Where the runtime does not tell the pod's UID, the directory itself counts. */
static bool may_have_claims(const struct netconf *conf)
{
    char path[RUN_DIR_SIZE + sizeof CLAIMS_DIRECTORY], uid[64];
    struct stat found;
    snprintf(path, sizeof path, "%s" CLAIMS_DIRECTORY, conf->run_dir);
    int directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return errno != ENOENT && errno != ENOTDIR;
    bool marked = !pod_uid(uid, sizeof uid) || fstatat(directory, uid, &found, AT_SYMLINK_NOFOLLOW) == 0
               || errno != ENOENT;
    close(directory);
    return marked;
}

/* Whether the container certainly wants nothing. */
static bool wants_nothing(const struct netconf *conf)
{
    return conf->wish == WISH_NOTHING && !conf->delegate && !may_hold_devices(conf) && !may_have_claims(conf);
}

/* Whether the container certainly has nothing by way of the agent. Where markers cannot be looked for, the
 * annotations tell, which a runtime keeps from the sandbox's start on; with a delegate they do not, since
 * then every pod has something. */
static bool has_nothing(const struct netconf *conf)
{
    enum marker marker = find_marker(conf->run_dir);
    if (marker == MARKER_UNKNOWN)
        return wants_nothing(conf);
    return marker == MARKER_ABSENT;
}

/* Who answers; nobody is asked about a pod that certainly has and wants nothing of ours. A container in
 * CHECK was added before, so without a marker and without annotations it holds nothing either. Without the
 * agent no pod starts where this is the only plugin, which STATUS has to tell. */
static enum answer decide(const struct call *call)
{
    const struct netconf *conf = &call->conf;
    switch (call->verb) {
    case VERSION:
        return SAY_VERSIONS;
    case STATUS:
        return conf->only_plugin ? ASK_AGENT : SAY_NOTHING;
    case ADD:
        return conf->prev_result.at && wants_nothing(conf) ? SAY_PREV_RESULT : ASK_AGENT;
    case DEL:
        return has_nothing(conf) ? SAY_NOTHING : ASK_AGENT;
    case CHECK:
        return conf->wish != WISH_SOMETHING && has_nothing(conf) ? SAY_NOTHING : ASK_AGENT;
    default:
        return ASK_AGENT;
    }
}

/* A descriptor of the pod's network namespace, or -1 and why not. */
static int open_netns(const char *path, struct cni_error *error)
{
    int netns = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (netns < 0) {
        explain(error, "open", errno);
    } else if (ioctl(netns, NS_GET_NSTYPE) != CLONE_NEWNET) {
        explain(error, "ioctl NS_GET_NSTYPE", ENOTSUP);
        close(netns);
        netns = -1;
    }
    return netns;
}

/* On ADD the namespace has to be there; later it may be gone, which is no error then. */
static bool read_netns(struct call *call)
{
    const char *path = variable("CNI_NETNS");
    if (*path)
        call->request.netns = open_netns(path, &call->error);
    if (call->request.netns < 0 && call->verb == ADD)
        return fail(&call->error, CNI_INVALID_ENVIRONMENT, "CNI_NETNS is '%s': no network namespace to open there",
                    path);
    call->error.details[0] = '\0';
    return true;
}

/* Of CHECK nothing is said where nobody answers: that an agent is away is no fault of the pod's, and CRI-O,
 * which calls CHECK of all pods when it starts, takes one that fails for a pod without a network, which kubelet
 * then ends. Nor of DEL, once it is left to the agent: a runtime that is told of a failure keeps the pod, or calls no
 * other plugin of the list and never comes back. */
static bool ask(struct call *call, struct reply *reply)
{
    uint32_t timeout_ms = call->conf.timeout_ms;
    if (call->verb == STATUS && timeout_ms > STATUS_TIMEOUT_MS)
        timeout_ms = STATUS_TIMEOUT_MS;
    if (!read_netns(call))
        return false;
    if (ask_agent(call->conf.run_dir, timeout_ms, call->request, reply, &call->error))
        return true;
    if (call->verb == STATUS)
        call->error.code = CNI_NOT_AVAILABLE;
    return call->verb == CHECK || (call->verb == DEL && leave_deletion(call->conf.run_dir, call->request));
}

static bool serve(struct call *call, struct reply *reply)
{
    if (!read_call(call))
        return false;
    switch (decide(call)) {
    case SAY_NOTHING:
        return true;
    case SAY_PREV_RESULT:
        reply->standard_output = call->conf.prev_result;
        return true;
    case SAY_VERSIONS:
        reply->standard_output = version_document(call->conf.cni_version);
        return true;
    default:
        return ask(call, reply);
    }
}

/* A CNI plugin has no arguments. With `memlock` as the first, this is the OCI hook of docs/locked-memory.md. */
int main(int argc, char **argv)
{
    static struct call call = {.request = {.frame = frame, .netns = -1}};
    struct reply reply = {.exit_status = EXIT_SUCCESS};
    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && strcmp(argv[1], "memlock") == 0)
        return memlock_hook(argc, argv);
    netconf_init(&call.conf);
    if (!serve(&call, &reply)) {
        reply.standard_output = error_document(&call.error, error_version(call.conf.cni_version));
        reply.exit_status = EXIT_FAILURE;
    }
    return write_all(STDOUT_FILENO, reply.standard_output, now_ms() + RUNTIME_TIMEOUT_MS) ? reply.exit_status
                                                                                         : EXIT_FAILURE;
}
