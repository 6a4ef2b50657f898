// A page without a module of its own that follows the journal.

import { keepFresh } from "./refresh.js";

keepFresh();
