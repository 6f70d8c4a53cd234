#include "environment.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {
    [ADD] = "ADD", [DEL] = "DEL", [CHECK] = "CHECK", [STATUS] = "STATUS", [GC] = "GC", [VERSION] = "VERSION",
};

const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

bool read_verb(enum verb *verb, struct cni_error *error)
{
    const char *command = variable("CNI_COMMAND");
    for (*verb = ADD; *verb <= VERSION; ++*verb)
        if (strcmp(command, names[*verb]) == 0)
            return true;
    *verb = VERB_UNKNOWN;
    return fail(error, CNI_INVALID_ENVIRONMENT,
                "CNI_COMMAND is '%s', not ADD, DEL, CHECK, STATUS, GC or VERSION; "
                "this program is run by container runtimes",
                command);
}

static bool is_alphanumeric(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool check_container_id(struct cni_error *error)
{
    const char *id = variable("CNI_CONTAINERID");
    bool valid = is_alphanumeric(id[0]);
    for (const char *c = id; valid && *c; c++)
        valid = is_alphanumeric(*c) || strchr("_.-", *c);
    return valid || fail(error, CNI_INVALID_ENVIRONMENT,
                         "CNI_CONTAINERID is '%s': expected a letter or digit, then letters, digits, _ . or -", id);
}

static bool is_set(const char *name, enum verb verb, struct cni_error *error)
{
    return *variable(name) || fail(error, CNI_INVALID_ENVIRONMENT, "%s: not set, and %s needs it", name, names[verb]);
}

bool check_variables(enum verb verb, struct cni_error *error)
{
    bool of_container = verb == ADD || verb == DEL || verb == CHECK;
    return !of_container
        || (is_set("CNI_CONTAINERID", verb, error) && check_container_id(error) && is_set("CNI_IFNAME", verb, error)
            && (verb == DEL || is_set("CNI_NETNS", verb, error)));
}

bool pod_uid(char *out, size_t room)
{
    static const char key[] = "K8S_POD_UID=";
    const char *entry = variable("CNI_ARGS");
    while (strncmp(entry, key, sizeof key - 1) != 0) {
        entry = strchr(entry, ';');
        if (!entry)
            return false;
        entry++;
    }
    entry += sizeof key - 1;
    size_t length = strcspn(entry, ";");
    if (length == 0 || length >= room || memchr(entry, '/', length))
        return false;
    memcpy(out, entry, length);
    out[length] = '\0';
    return true;
}

bool copy_variables(unsigned char *out, size_t room, size_t *size, struct cni_error *error)
{
    for (char **entry = environ; *entry; entry++) {
        if (strncmp(*entry, "CNI_", 4) != 0)
            continue;
        size_t length = strlen(*entry) + 1;
        if (*size + length > room)
            return fail(error, CNI_INVALID_ENVIRONMENT, "the CNI_* variables exceed %zu bytes together, at %.32s",
                        room, *entry);
        memcpy(out + *size, *entry, length);
        *size += length;
    }
    return true;
}
