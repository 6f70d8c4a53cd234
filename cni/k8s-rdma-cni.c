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
#include "io.h"
#include "netconf.h"

/* As in src/k8s_rdma/wire/cni_result.py. libcni takes a configuration without cniVersion for 0.1.0. */
#define SUPPORTED_VERSIONS "\"0.1.0\",\"0.2.0\",\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\""

enum verb { VERB_UNKNOWN, ADD, DEL, CHECK, STATUS, GC, VERSION };

/* Whether something of ours was ever given to the container. UNKNOWN: the directory cannot be read. */
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

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

static bool read_verb(struct call *call)
{
    static const char *const names[] = {
        [ADD] = "ADD", [DEL] = "DEL", [CHECK] = "CHECK", [STATUS] = "STATUS", [GC] = "GC", [VERSION] = "VERSION",
    };
    const char *command = variable("CNI_COMMAND");
    for (enum verb verb = ADD; verb <= VERSION; verb++)
        if (strcmp(command, names[verb]) == 0)
            call->verb = verb;
    if (call->verb != VERB_UNKNOWN)
        return true;
    return fail(&call->error, CNI_INVALID_ENVIRONMENT,
                "CNI_COMMAND is '%s', not ADD, DEL, CHECK, STATUS, GC or VERSION; "
                "this program is run by container runtimes",
                command);
}

/* Appends the CNI_* variables to the frame, each with its NUL. */
static bool read_environment(struct call *call)
{
    for (char **entry = environ; *entry; entry++) {
        if (strncmp(*entry, "CNI_", 4) != 0)
            continue;
        size_t size = strlen(*entry) + 1;
        if (call->request.env_size + size > MAX_ENV_SIZE)
            return fail(&call->error, CNI_INVALID_ENVIRONMENT, "the CNI_* variables exceed %d bytes together, at %.32s",
                        MAX_ENV_SIZE, *entry);
        memcpy(frame + REQUEST_HEADER_SIZE + call->request.env_size, *entry, size);
        call->request.env_size += size;
    }
    return true;
}

/* Appends standard input to the frame and reads it as the network configuration. VERSION may come without. */
static bool read_input(struct call *call)
{
    unsigned char *input = frame + REQUEST_HEADER_SIZE + call->request.env_size;
    ssize_t size = read_all(STDIN_FILENO, input, MAX_STDIN_SIZE + 1, FOREVER);
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

static bool is_alphanumeric(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* A container ID becomes a file name, so it is checked first (CNI specification 1.1.0, section 2). */
static bool check_container_id(struct call *call)
{
    const char *id = variable("CNI_CONTAINERID");
    bool valid = is_alphanumeric(id[0]);
    for (const char *c = id; valid && *c; c++)
        valid = is_alphanumeric(*c) || strchr("_.-", *c);
    return valid || fail(&call->error, CNI_INVALID_ENVIRONMENT,
                         "CNI_CONTAINERID is '%s': expected a letter or digit, then letters, digits, _ . or -", id);
}

static enum marker find_marker(const char *run_dir)
{
    char path[RUN_DIR_SIZE + sizeof MARKER_DIRECTORY];
    struct stat found;
    snprintf(path, sizeof path, "%s" MARKER_DIRECTORY, run_dir);
    int directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return MARKER_UNKNOWN;
    int status = fstatat(directory, variable("CNI_CONTAINERID"), &found, AT_SYMLINK_NOFOLLOW);
    int reason = errno;
    close(directory);
    if (status == 0)
        return MARKER_PRESENT;
    return reason == ENOENT ? MARKER_ABSENT : MARKER_UNKNOWN;
}

/* Who answers; nobody is asked about a pod that certainly has and wants nothing of ours. A container in
 * CHECK was added before, so without a marker and without annotations it holds nothing either. */
static enum answer decide(const struct call *call)
{
    switch (call->verb) {
    case VERSION:
        return SAY_VERSIONS;
    case STATUS:
        return SAY_NOTHING;
    case ADD:
        return call->conf.prev_result.at && call->conf.wish == WISH_NOTHING ? SAY_PREV_RESULT : ASK_AGENT;
    case DEL:
        return find_marker(call->conf.run_dir) == MARKER_ABSENT ? SAY_NOTHING : ASK_AGENT;
    case CHECK:
        return call->conf.wish != WISH_SOMETHING && find_marker(call->conf.run_dir) == MARKER_ABSENT ? SAY_NOTHING
                                                                                                    : ASK_AGENT;
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

/* On ADD the namespace has to be there; later it may be gone. */
static bool read_netns(struct call *call)
{
    const char *path = variable("CNI_NETNS");
    if (*path)
        call->request.netns = open_netns(path, &call->error);
    return call->request.netns >= 0 || call->verb != ADD
        || fail(&call->error, CNI_INVALID_ENVIRONMENT, "CNI_NETNS is '%s': no network namespace to open there", path);
}

static bool ask(struct call *call, struct reply *reply)
{
    return read_netns(call)
        && ask_agent(call->conf.run_dir, call->conf.timeout_ms, call->request, reply, &call->error);
}

static struct span versions(struct span cni_version)
{
    static char text[256];
    int length = snprintf(text, sizeof text, "{\"cniVersion\":%.*s,\"supportedVersions\":[" SUPPORTED_VERSIONS "]}\n",
                          (int)(cni_version.end - cni_version.at), (const char *)cni_version.at);
    return (struct span){(unsigned char *)text, (unsigned char *)text + length};
}

static bool serve(struct call *call, struct reply *reply)
{
    if (!read_verb(call) || !read_environment(call) || !read_input(call))
        return false;
    bool of_container = call->verb == ADD || call->verb == DEL || call->verb == CHECK;
    if (of_container && !check_container_id(call))
        return false;
    switch (decide(call)) {
    case SAY_NOTHING:
        return true;
    case SAY_PREV_RESULT:
        reply->standard_output = call->conf.prev_result;
        return true;
    case SAY_VERSIONS:
        reply->standard_output = versions(call->conf.cni_version);
        return true;
    default:
        return ask(call, reply);
    }
}

int main(void)
{
    static struct call call = {.request = {.frame = frame, .netns = -1}};
    struct reply reply = {.exit_status = EXIT_SUCCESS};
    signal(SIGPIPE, SIG_IGN);
    netconf_init(&call.conf);
    if (!serve(&call, &reply)) {
        print_error(&call.error, call.conf.cni_version);
        return EXIT_FAILURE;
    }
    if (!write_all(STDOUT_FILENO, reply.standard_output))
        return EXIT_FAILURE;
    return reply.exit_status;
}
