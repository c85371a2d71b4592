#include "ignis_store_parts.h"
int ign_store_compact(ign_store *store, const ign_store_figures *figures)
{
    (void)store; (void)figures;
    return IGN_EMPTY;
}
