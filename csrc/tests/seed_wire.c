/* Writes frames as the first inputs of fuzz_wire: hexadecimal digits on standard input, one frame a line, one file
 * each in the directory that is named. The vectors are told by their number. */
#include <stdio.h>
#include <string.h>

static int digit(int c)
{
    const char *digits = "0123456789abcdef", *found = strchr(digits, c);
    return c == 0 || found == NULL ? -1 : (int)(found - digits);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    FILE *out = NULL;
    char path[4096];
    int number = 0, high = -1;
    for (int c = getchar(); c != EOF; c = getchar()) {
        if (c == '\n') {
            if (out != NULL && fclose(out) != 0)
                return 1;
            out = NULL;
            high = -1;
            continue;
        }
        int value = digit(c);
        if (value < 0)
            return 1;
        if (high < 0) {
            high = value;
            continue;
        }
        if (out == NULL) {
            int len = snprintf(path, sizeof path, "%s/vector-%03d", argv[1], number++);
            if (len < 0 || (size_t)len >= sizeof path || (out = fopen(path, "wb")) == NULL)
                return 1;
        }
        fputc(high << 4 | value, out);
        high = -1;
    }
    printf("seeds      %d\n", number);
    return out == NULL || fclose(out) == 0 ? 0 : 1;
}
