#include "cni_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool fail(struct cni_error *error, enum cni_code code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->msg, sizeof error->msg, format, arguments);
    va_end(arguments);
    for (char *c = error->msg; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = '?'; /* a line break in a variable would make two lines of it */
    error->code = code;
    return false;
}

void explain(struct cni_error *error, const char *call, int number)
{
    snprintf(error->details, sizeof error->details, "%s: %s", call, strerror(number));
}

struct span error_document(const struct cni_error *error, const char *cni_version)
{
    /* An escaped byte takes six at most. */
    char msg[6 * sizeof error->msg], details[6 * sizeof error->details];
    static char out[sizeof msg + sizeof details + 256];
    json_quote(error->msg, msg, sizeof msg);
    json_quote(error->details, details, sizeof details);
    int length = snprintf(out, sizeof out, "{\"cniVersion\":\"%s\",\"code\":%d,\"msg\":%s,\"details\":%s}\n",
                          cni_version, (int)error->code, msg, details);
    return (struct span){(unsigned char *)out, (unsigned char *)out + length};
}
